"""The pages results/auto.md and results/methods.md, from the figures of tools/auto_study.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from idness.detectors.detector import Detector
from idness.detectors.registry import available
from idness.methods.fuse import MANY
from idness.selection.recommend import FUSE_LEAD, HARMS, HELPS, LEAD

Network = Mapping[str, Any]
OVER_EBO, OF_BEST, OF_SCALE = 1.0, 1.0, 0.5
"""The goals, in points of AUROC: how far above the energy score, how near to the best single method and to SCALE."""
LEFT_OUT_WITH = {"ish": "base", "densenet-100": "densenet"}
LEARNED = """\
## What was tuned on what

Nothing here is fitted on test images, but people make choices too, and the figures they saw count:

- **The parts of `fuse`**, their weights and limits were chosen with OOD figures of all networks that are not in bold. The parts for
  many classes come from all sums of up to four of 19 methods on eight networks, those for fewer classes and for signed features from
  about 45,000 and 10,000 sums of standardized scores, some with an upper limit. Of the best in near and mean AUROC, one with few parts
  was taken. The parts for many classes are used from {many} classes on; the networks have up to 100, or 700.
- **The kinds of pseudo-OOD images** (mosaic, inverted, turned, edges) were chosen on base, ish, narrow, densenet, mobilenet+700 and
  lite0+700, among all combinations of up to four of 14 kinds, by how they rank methods.
- **The thresholds** (on pseudo-OOD images, `fuse` must lead EBO by {fuse} logits and a single method `fuse` by {lead}; SCALE helps above
  {helps:+.1f} and harms below {harms:+.2f}) were set after seeing the same networks.
- **Not used for any choice**: {fresh}."""


def auto_page(results: Mapping[str, Any]) -> str:
    """Return results/auto.md."""
    networks = results["networks"]
    fresh = [name for name, network in networks.items() if not network["chosen on"]]
    lines = [
        "# `fuse` and `auto` on all available networks",
        "",
        f"Made by `{results['command']}`; every number is in `auto.json`. Points of AUROC above (+) or below (-) the energy score",
        "(EBO), mean of near and far, ± half of the 95 % interval for these images (DeLong, paired). Regret: the best single method at",
        "its defaults, known only in hindsight, minus `auto`, which sees ID images only; negative if `auto` is above all of them. In bold:",
        "networks that no choice was made on. Methods of two passes (odin, adascale) saw a part of the images of slow networks.",
        "",
        summary(networks),
        "",
        *_not_here(results),
        "## Goals",
        "",
        *goals(networks),
        "",
        LEARNED.format(
            fresh=", ".join(fresh) or "none", lead=LEAD, fuse=FUSE_LEAD, helps=HELPS, harms=HARMS, many=MANY
        ),
        "",
        "## Predicted and real effect of SCALE",
        "",
        *doctor(networks),
        "",
        "## Near sets",
        "",
        *near_sets(networks),
        "",
        "## Networks and images",
        "",
    ]
    lines += [details(name, network) for name, network in networks.items()]
    return "\n".join(lines) + "\n"


def summary(networks: Mapping[str, Network]) -> str:
    """Return the main table, one row per network."""
    lines = [
        "| network | EBO near / far | scale(85) | scale(auto) | fuse | auto | best single | regret |",
        "|---|--:|--:|--:|--:|--:|---|--:|",
    ]
    for name, network in networks.items():
        methods, best = network["methods"], network["best single"]
        title = f"{network['about']} (`{name}`)"
        cells = [
            title if network["chosen on"] else f"**{title}**",
            " / ".join(f"{100 * methods['ebo'][group]['auroc'][0]:.1f}" for group in ("near", "far")),
            *(_gain(methods[row]["difference to ebo"]) for row in ("scale", "scale(auto)", "fuse", "auto")),
            f"{best} {_gain(methods[best]['difference to ebo'])}",
            _gain(network["regret"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def goals(networks: Mapping[str, Network]) -> list[str]:
    """Return a line for each network that names the goals it misses."""
    lines = [
        f"`auto` at least {OVER_EBO} above EBO; within {OF_BEST} of the best single method; `fuse` not below EBO; where SCALE is",
        f"above EBO, `auto` at most {OF_SCALE} below SCALE.",
        "",
    ]
    for name, network in networks.items():
        auto, fuse, scale = (100 * network["methods"][row]["difference to ebo"][0] for row in ("auto", "fuse", "scale"))
        regret = 100 * network["regret"][0]
        missed = [
            *([f"`auto` is only {auto:+.2f} above EBO"] if auto < OVER_EBO else []),
            *([f"`auto` is {regret:.2f} below {network['best single']}"] if regret > OF_BEST else []),
            *([f"`fuse` is {-fuse:.2f} below EBO"] if fuse < 0 else []),
            *([f"`auto` is {scale - auto:.2f} below SCALE"] if scale > 0 and scale - auto > OF_SCALE else []),
        ]
        why = _why(network, network["best single"]) if missed else ""
        near = 100 * (network["methods"]["auto"]["near"]["auroc"][0] - network["methods"]["ebo"]["near"]["auroc"][0])
        cost = f" On near sets alone `auto` is {-near:.1f} below EBO." if near < -0.05 else ""
        lines.append(f"- {name}: {'missed: ' + '; '.join(missed) if missed else 'all met'}.{why}{cost}")
    return lines


def _why(network: Network, best: str) -> str:
    """Describe what `auto` saw of the method that it should have used."""
    if (gain := 100 * network["methods"][best]["difference to ebo"][0]) < OVER_EBO:
        return f" No single method gains more than {gain:.1f}."
    if "pseudo-OOD images" not in network["methods"][best]:
        return (
            f" {best} runs the network several times on each image, forwards and backwards; `auto` uses no such method."
        )
    ahead = network["methods"][best]["pseudo-OOD images"] - network["methods"]["fuse"]["pseudo-OOD images"]
    return f" On pseudo-OOD images, {best} is {ahead:+.2f} logits from `fuse`, and {LEAD:+.2f} are needed."


def doctor(networks: Mapping[str, Network]) -> list[str]:
    """Compare the diagnosis of SCALE with its gain on real OOD images."""
    lines = [
        "Gain of SCALE over EBO: on pseudo-OOD images in logits, as `idness doctor` measures it, and on real OOD images in points.",
        "",
        "| network | diagnosis: SCALE | on pseudo-OOD at 85 | on real OOD at 85 | chosen percentile | on real OOD there | recommended |",
        "|---|---|--:|--:|---|--:|---|",
    ]
    for name, network in networks.items():
        methods, gains = network["methods"], network["scale gains on pseudo-OOD images, logits"]
        chosen = methods["scale(auto)"]["label"]
        cells = [
            name,
            network["doctor"]["scale"],
            f"{gains['85']:+.2f}",
            _gain(methods["scale"]["difference to ebo"]),
            "no scaling" if chosen.startswith("ebo") else chosen,
            _gain(methods["scale(auto)"]["difference to ebo"]),
            network["doctor"]["method"].partition("(")[0],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def near_sets(networks: Mapping[str, Network]) -> list[str]:
    """Return a table of `fuse` on near sets, beside the weight and limit that are chosen without a network and its family."""
    kinds = {name: (one["signed"], one["classes"] < MANY) for name, one in networks.items()}
    families = {name: LEFT_OUT_WITH.get(name, name) for name in networks}
    lines = [
        "Gain over EBO on near sets, and on the mean of near and far: of `fuse`, of its parts for few classes or signed features in full,",
        "and with the weight and limit whose gains add up to most on the other networks of its kind (sign, classes) and not its family.",
        "",
        "| network | `fuse` | in full | chosen without it | weight and limit |",
        "|---|--:|--:|--:|---|",
    ]
    for name, network in networks.items():
        others = [other for other in networks if kinds[other] == kinds[name] and families[other] != families[name]]
        best = max(network["sums"], key=lambda title: sum(sum(networks[other]["sums"][title]) for other in others))
        own = _ahead(network, "fuse", "near"), network["methods"]["fuse"]["difference to ebo"][0]
        full = network["sums"][f"{0.5 if network['signed'] else 0.25} ras, inf"]
        gains = (f"{100 * near:+.1f}, mean {100 * mean:+.1f}" for near, mean in (own, full, network["sums"][best]))
        lines.append(f"| {name} | {' | '.join(gains)} | {best} |")
    return lines


def details(name: str, network: Network) -> str:
    """Describe one network and its images."""
    images, every = network["images"], network.get("one in so many for two passes", 1)
    sets = {group: ", ".join(f"{one} ({images[one]})" for one in network[group]) for group in ("near", "far")}
    pseudo = next((count for one, count in images.items() if one.startswith("pseudo ")), 0)
    return (
        f"- `{name}`: {network['about']}, {network['features']} features, {network['classes']} classes,"
        f" accuracy {100 * network['accuracy']:.1f} %. ID: {images['train']} images to learn from, {images['val']} to compare on"
        f" ({pseudo} of them for pseudo-OOD images), {images['test']} to test. Near: {sets['near']}. Far: {sets['far']}."
        + (f" Methods of two passes (odin, adascale) saw one in {every} of these." if every > 1 else "")
        + f" `auto`: {network['auto']['why'].rstrip('.')}; {network['auto']['risk'].rstrip('.')}."
    )


def _not_here(results: Mapping[str, Any]) -> list[str]:
    absent = [f"{about} (`{name}`)" for name, about in results["passed over"].items()]
    cut = "".join(
        f"\n`+{name.partition('+')[2]}`: the ImageNet head cut to as many classes drawn at random; images of the others are a near set."
        " The body has seen those classes in training, so they are easier to accept than new ones would be."
        for name in list(results["networks"])[-1:]
        if "+" in name
    ).strip()
    missing = f"Not measured, as they were not available or not asked for: {', '.join(absent)}." if absent else ""
    return [line for text in (cut, missing) if text for line in (text, "")]


def _gain(values: list[float] | None) -> str:
    return "" if values is None else f"{100 * values[0]:+.1f} ± {50 * (values[2] - values[1]):.1f}"


def methods_table(networks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements beside the description of each method, by row."""
    found: dict[str, Any] = {}
    for name, method in available().items():
        for row in method.rows or [name]:
            gains = {
                each: network["methods"][row]["difference to ebo"]
                for each, network in networks.items()
                if row in network["methods"]
            }
            found[row] = {
                "formula": method.formula.split(r", \quad "),
                "learns from": _learns_from(name, method),
                "assumes": method.assumes,
                "passes": method.passes(),
                "paper": method.paper(),
                "mean": _mean(gain for gain, *_ in gains.values()),
                "near": _mean(_ahead(network, row, "near") for network in networks.values()),
                "far": _mean(_ahead(network, row, "far") for network in networks.values()),
                "difference to ebo": gains,
            }
    order = sorted(found, key=lambda row: -(found[row]["mean"] if found[row]["mean"] is not None else -1.0))
    return {row: found[row] for row in order}


LETTERS = """*a* are the features of an image, *z = Wa + b* its logits, *w*<sub>c</sub> the weights of class *c*, *ŷ* the predicted one
of *C* classes, *p* the softmax; *E* is the readout, log Σ<sub>c</sub> exp *z*<sub>c</sub> unless set otherwise. *ā* is *a* at length 1, *ã*
standardized. *P*<sub>p</sub> is a percentile over ID images; *top* and the mask *m* are the features above an image's own percentile,
*k* is their number, or that of neighbours, *r* the sum of all features over that of the top ones. *μ* and *Σ* are means and
covariances of training images, *P* and *P*<sup>⊥</sup> project into their principal space and out of it, *i* counts them. Options have
their own letters, and what else a formula names is on the method's page."""


def families_table(methods: Mapping[str, Any], networks: Mapping[str, str]) -> list[str]:
    """Return mean rank and mean gain of each method over the networks of each family, the best of the first family first."""
    found = dict[str, dict[str, str]]()
    for family in dict.fromkeys(networks.values()):
        names = [name for name, one in networks.items() if one == family]
        gains = {row: [item["difference to ebo"].get(name) for name in names] for row, item in methods.items()}
        known = {row: [gain[0] for gain in each] for row, each in gains.items() if None not in each}
        ranks = {row: [1 + sum(o[i] > v for o in known.values()) for i, v in enumerate(e)] for row, e in known.items()}
        for row, each in sorted(known.items(), key=lambda item: sum(ranks[item[0]])):
            rank = sum(ranks[row]) / len(names)
            found.setdefault(row, {})[f"{family} ({len(names)})"] = f"{rank:.1f} | {_signed(sum(each) / len(each))}"
    families = list(dict.fromkeys(family for cells in found.values() for family in cells))
    lines = [f"| method | {' | '.join(f'{family}: rank | gain' for family in families)} |"]
    lines.append(f"|---|{'--:|--:|' * len(families)}")
    return lines + [
        f"| {row} | {' | '.join(cells.get(one, ' | ') for one in families)} |" for row, cells in found.items()
    ]


def methods_page(methods: Mapping[str, Any], networks: Mapping[str, str]) -> str:
    """Return results/methods.md."""
    lines = [
        "# Every method: what it needs and what it gains",
        "",
        "Made by `python tools/auto_study.py`; every number is in `methods.json`. Methods at their defaults, the best first.",
        "",
        "- **mean**, **near**, **far**: points of AUROC above the energy score (`ebo`), the mean over those of",
        f"  {len(networks)} networks that it was run on.",
        "- **wins**, **loses**: on how many of them it is significantly above or below `ebo` (by the 95 % interval of the",
        "  paired difference, DeLong), and on which one most.",
        "- **passes**: of the network for each image; scoring the activations costs far less than one pass.",
        "- **formula**: the score, higher is more in-distribution; its letters are explained below the table.",
        "",
        "| method | formula | learns from | assumes | passes | mean | near | far | wins | loses | paper |",
        "|---|---|---|---|---|--:|--:|--:|---|---|---|",
    ]
    for row, item in methods.items():
        gains = item["difference to ebo"]
        cells = [
            row,
            "<br>".join(f"$`{part}`$" for part in item["formula"]),
            item["learns from"],
            item["assumes"],
            item["passes"],
            *(_signed(item[key]) for key in ("mean", "near", "far")),
            _most({name: gain for name, (gain, low, _) in gains.items() if low > 0}, len(gains), max),
            _most({name: gain for name, (gain, _, high) in gains.items() if high < 0}, len(gains), min),
            short_paper(item["paper"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Letters in the formulas",
        "",
        LETTERS,
        "",
        "## By family of network",
        "",
        "Mean rank among all methods and mean gain over EBO, in points of AUROC, over the networks of a family.",
        "",
        *families_table(methods, networks),
        "",
        "## On each network",
        "",
        "Points of AUROC to EBO ± half of the 95 % interval (DeLong, paired); `auto.md` describes the networks and sets.",
        "",
        f"| method | {' | '.join(networks)} |",
        f"|---|{'--:|' * len(networks)}",
    ]
    for row, item in methods.items():
        cells = [_gain(item["difference to ebo"].get(name)) for name in networks]
        lines.append(f"| {' | '.join([row, *cells])} |")
    return "\n".join(lines) + "\n"


def short_paper(paper: str) -> str:
    """Return authors, venue and year of a paper, without its title."""
    known = (paper.partition(" -- ")[2] or paper).rpartition("; ")[2]
    return re.sub(r' "[^"]*",?', "", known).rstrip(".").replace("|", "\\|")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 5) if known else None


def _ahead(network: Mapping[str, Any], row: str, group: str) -> float | None:
    """Return a method's AUROC minus that of the energy score on one group of sets."""
    measured = network["methods"]
    return measured[row][group]["auroc"][0] - measured["ebo"][group]["auroc"][0] if row in measured else None


def _most(gains: Mapping[str, float], of: int, extreme: Callable[..., str]) -> str:
    """Return the number of networks, and the one with the largest difference."""
    if not gains:
        return "–"
    name = extreme(gains, key=lambda each: gains[each])
    return f"{len(gains)} of {of}: {name} {_signed(gains[name])}"


def _learns_from(name: str, method: type[Detector]) -> str:
    if method.needs_labels:
        return "train, labels" + (", val" if method.needs_val else "")
    if method.needs_train:
        return "train and val" if name in ("fuse", "vim") else "val or train" if method.needs_val else "train"
    return "val or train" if method.needs_val else "nothing"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f}"
