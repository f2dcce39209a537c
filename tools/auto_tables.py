"""Write results/auto.md from the figures of tools/auto_study.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from idness.selection.recommend import HARMS, HELPS, LEAD

Network = Mapping[str, Any]
OVER_EBO, OF_BEST, OF_SCALE = 1.0, 1.5, 0.5
"""The goals, in points of AUROC: how far above the energy score, and how near to the best single method and to SCALE."""
LEARNED = """\
## What was tuned on what

Nothing here is fitted on test images, but people choose too, and what they have looked at counts:

- **The parts of `fuse`**: VRA, ActSub and ViM (its alpha from validation images), their plain sum, and the numbers of images
  below which it falls back were chosen while looking at OOD figures of base, ish, narrow, densenet, mobilenet+700 and
  lite0+700 (with another draw of the 700 classes), and of a stand-in for a transformer (the embedded network's features through
  a LayerNorm head) that is not in this table. About 1,800 sets of parts in four ways of adding them were tried. The three were
  then measured on networks that nobody had looked at (an earlier version of this page): +2.9 on vit, +2.7 on wide, +3.4 on
  resnet50+700, 1.5 below the best single method on vit and 1.0 below SCALE on resnet50+700. NCI came in after that, as the
  fourth part that mends both, chosen among all sums of up to four of 19 methods on base, ish, densenet,
  mobilenet+700, lite0+700, vit, wide and resnet50+700.
- **The kinds of stand-ins** (mosaic, inverted, turned, edges) were chosen on base, ish, narrow, densenet, mobilenet+700 and
  lite0+700, among all sets of up to four of 14 kinds, by how they rank methods.
- **The thresholds** (a single method must lead `fuse` by {lead:.1f} logits on stand-ins; SCALE helps above {helps:+.1f} and harms
  below {harms:+.2f}) were set after seeing the same networks.
- **Not looked at for any choice**: {fresh}.

Features in place of pictures do not serve: stand-ins made of blended, mixed or permuted features rank methods with a
Spearman correlation of 0.1 to 0.3, and tell the wrong sign for SCALE on three of seven networks. With activations alone
`auto` is `fuse`, and says that nothing was measured."""


def page(results: Mapping[str, Any]) -> str:
    """Write the whole page."""
    networks = results["networks"]
    lines = [
        "# One answer by default: `fuse` and `auto` on every network at hand",
        "",
        f"Made by `{results['command']}`; every number is in `auto.json`. Points of AUROC above (+) or below (-) the energy score",
        "(EBO), mean of near and far, ± half of the 95 % interval for these images (DeLong, paired). Regret: the best single method",
        "at its defaults, known only in hindsight, minus `auto`; negative where `auto` is above all of them. `auto` sees ID images",
        "only. In bold: networks that no choice was made on. What was chosen again without each network, and what came of it, is below.",
        "Methods that look twice (odin, adascale) saw a part of the images of slow networks; what they gain, and a regret beside one, is",
        "measured on that part.",
        *_about_settings(networks),
        "",
        summary(networks),
        "",
        *_not_here(results),
        "## Goals",
        "",
        *goals(networks),
        "",
        _learned(networks),
        "",
        *_left_out(results),
        "## What the doctor says of SCALE, and the truth",
        "",
        *doctor(networks),
        "",
        "## Whether stand-ins rank methods as real OOD images do",
        "",
        *stand_ins(networks),
        "",
        "## Every method on every network",
        "",
        "AUROC (higher is better) and FPR at 95 % ID recall (share of OOD images accepted; lower is better) in percent, means over",
        "the sets, with 95 % intervals; the best AUROC first.",
        "",
    ]
    for name, network in networks.items():
        lines += [*details(name, network), ""]
    return "\n".join(lines)


def summary(networks: Mapping[str, Network]) -> str:
    """Write the one table that matters: a row for each network."""
    looked = any(network["best at any option"] for network in networks.values())
    lines = [
        "| network | EBO near / far | scale(85) | scale(auto) | fuse | auto | best single | regret |"
        + (" best at any option |" if looked else ""),
        "|---|--:|--:|--:|--:|--:|---|--:|" + ("---|" if looked else ""),
    ]
    for name, network in networks.items():
        methods, best = network["methods"], network["best single"]
        tuned = network["best at any option"]
        title = f"{network['about']} (`{name}`)"
        cells = [
            title if network["chosen on"] else f"**{title}**",
            " / ".join(_percent(methods["ebo"][group]["auroc"][0]) for group in ("near", "far")),
            *(_gain(methods[row]["difference to ebo"]) for row in ("scale", "scale(auto)", "fuse", "auto")),
            f"{best} {_gain(methods[best]['difference to ebo'])}",
            _gain(network["regret"]),
        ]
        if looked:
            cells.append("" if tuned is None else f"{tuned['label']} {100 * tuned['difference to ebo']:+.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _about_settings(networks: Mapping[str, Network]) -> list[str]:
    if not any(network["best at any option"] for network in networks.values()):
        return []
    return [
        "Last column: the best single method at any option of its search grid, chosen on the test images themselves, which nothing",
        "can promise.",
    ]


def goals(networks: Mapping[str, Network]) -> list[str]:
    """Say for each network which goals are met, in plain words."""
    lines = [
        f"`auto` at least {OVER_EBO} above EBO; within {OF_BEST} of the best single method; `fuse` not below EBO; where SCALE is",
        f"above EBO, `auto` at most {OF_SCALE} below SCALE.",
        "",
    ]
    for name, network in networks.items():
        auto, fuse, scale = (_points(network, row) for row in ("auto", "fuse", "scale"))
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
    """Say what `auto` saw of the method that it should have taken."""
    if "stand-ins" not in network["methods"][best]:
        return f" Why: {best} runs the network several times on each image, forwards and backwards; `auto` takes no such method."
    ahead = network["methods"][best]["stand-ins"] - network["methods"]["fuse"]["stand-ins"]
    return f" Why: on stand-ins, which is all that `auto` sees, {best} is {ahead:+.2f} logits to `fuse`, and it would take {LEAD:+.2f}."


def doctor(networks: Mapping[str, Network]) -> list[str]:
    """Set the doctor's verdicts beside what real OOD images say."""
    lines = [
        "Gain of SCALE over EBO: on stand-ins in logits, where the doctor looks, and on real OOD images in points.",
        "",
        "| network | the doctor: SCALE | on stand-ins at 85 | truth at 85 | percentile chosen | truth there | uses |",
        "|---|---|--:|--:|---|--:|---|",
    ]
    for name, network in networks.items():
        methods, gains = network["methods"], network["scale gains on stand-ins, logits"]
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


def stand_ins(networks: Mapping[str, Network]) -> list[str]:
    """Say how the order of single methods on stand-ins agrees with the real one."""
    lines = [
        "Spearman correlation over all single methods between the mean logit AUROC on the four kinds and the real mean AUROC, the",
        "method that is first on stand-ins, and what taking it would cost against the best.",
        "",
        "| network | Spearman | first on stand-ins | its regret |",
        "|---|--:|---|--:|",
    ]
    for name, network in networks.items():
        singles = {row: item for row, item in network["methods"].items() if row not in ("fuse", "auto", "scale(auto)")}
        first = max(singles, key=lambda row: singles[row].get("stand-ins", -math.inf))
        lost = singles[network["best single"]]["mean"]["auroc"][0] - singles[first]["mean"]["auroc"][0]
        lines.append(f"| {name} | {network['spearman']:.2f} | {first} | {100 * lost:.1f} |")
    return lines


def details(name: str, network: Network) -> list[str]:
    """List every row of one network, folded."""
    images, every = network["images"], network.get("one in so many for two looks", 1)
    sets = {group: ", ".join(f"{one} ({images[one]})" for one in network[group]) for group in ("near", "far")}
    stand_in = next((count for one, count in images.items() if one.startswith(("stand-in ", "pseudo-"))), 0)
    lines = [
        '<details markdown="1">',
        f"<summary>{name}: {network['about']}, {network['features']} features, {network['classes']} classes,"
        f" accuracy {100 * network['accuracy']:.1f} %</summary>",
        "",
        f"ID: {images['train']} images to learn from, {images['val']} to compare on ({stand_in} of them for stand-ins),"
        f" {images['test']} to test. Near: {sets['near']}. Far: {sets['far']}."
        + (f" Methods that look twice (odin, adascale) saw one in {every} of these." if every > 1 else ""),
        "",
        f"`auto`: {network['auto']['why']}; {network['auto']['risk']}.",
        "",
        "| method | near AUROC | near FPR | far AUROC | far FPR | mean AUROC | to EBO |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row, item in sorted(network["methods"].items(), key=lambda pair: -pair[1]["mean"]["auroc"][0]):
        values = [
            _interval(item[group][metric]) for group in ("near", "far") for metric in ("auroc", "fpr_at_id_recall")
        ]
        shown = f"**{row}**" if row in ("fuse", "auto") else row
        last = [_interval(item["mean"]["auroc"]), _gain(item["difference to ebo"])]
        lines.append(f"| {' | '.join([shown, *values, *last])} |")
    for row, reason in network["left out"].items():
        lines += ["", f"Not measured: {row}: {reason}."]
    return [*lines, "", "</details>"]


def _learned(networks: Mapping[str, Network]) -> str:
    fresh = [name for name, network in networks.items() if not network["chosen on"]]
    return LEARNED.format(fresh=", ".join(fresh) or "none", lead=LEAD, helps=HELPS, harms=HARMS)


def _left_out(results: Mapping[str, Any]) -> list[str]:
    """Tell what choosing everything again without each network would have given."""
    if not results["left out"]:
        return []
    lines = [
        "## Everything chosen again without the network",
        "",
        "This command chooses again, on real OOD images of the networks of other families, the parts of the fusion, the kinds of",
        "stand-ins (of ten), the lead by which a single method must win on them, and the gain from which SCALE is used; then it",
        "measures what `auto` and SCALE at its own percentile come to on the network that was left out (`tools/auto_left_out.py`).",
        "These figures rest on nothing that was looked at. The last two columns are what is shipped.",
        "",
        "| left out | fusion | stand-ins | lead | rank correlation | `auto` takes | to EBO | to the best single | SCALE at"
        " | to EBO | shipped `auto` to EBO | to the best single |",
        "|---|---|---|--:|--:|---|--:|--:|---|--:|--:|--:|",
    ]
    for name, found in results["left out"].items():
        values = [f"{100 * found[key]:+.1f}" for key in ("difference to ebo", "difference to the best single")]
        network = results["networks"][name]
        lead = found["lead"] if isinstance(found["lead"], str) else f"{found['lead']:g}"
        cells = [
            name,
            " + ".join(found["parts"]),
            ", ".join(found["kinds"]),
            lead,
            f"{found['spearman']:.2f}",
            "the fusion" if found["auto"] == "+".join(found["parts"]) else found["auto"],
            *values,
            "no scaling" if found["percentile"] is None else f"{found['percentile']:g}",
            f"{100 * found['scale to ebo']:+.1f}",
            f"{_points(network, 'auto'):+.1f}",
            f"{-100 * network['regret'][0]:+.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _not_here(results: Mapping[str, Any]) -> list[str]:
    absent = [f"{about} (`{name}`)" for name, about in results["passed over"].items()]
    cut = "".join(
        f"\n`+{name.partition('+')[2]}`: the ImageNet head cut to as many classes drawn at random; photographs of the others are a"
        " near set. The body has seen those classes in training, so they are easier to accept than news would be."
        for name in list(results["networks"])[-1:]
        if "+" in name
    ).strip()
    missing = (
        f"Not measured when this was made, as they were not at hand or not asked for: {', '.join(absent)}."
        if absent
        else ""
    )
    former = [f"`{name}`" for name, network in results["networks"].items() if "kept from" in network]
    kept = f"Kept from an earlier run, as they were not at hand in this one: {', '.join(former)}." if former else ""
    return [line for text in (cut, kept, missing) if text for line in (text, "")]


def _points(network: Network, row: str) -> float:
    return 100 * float(network["methods"][row]["difference to ebo"][0])


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _gain(values: list[float]) -> str:
    value, low, high = (100 * one for one in values)
    return f"{value:+.1f} ± {(high - low) / 2:.1f}"


def _interval(values: list[float]) -> str:
    if len(values) == 1:  # too few images for an interval
        return _percent(values[0])
    value, low, high = values
    return f"{_percent(value)} [{_percent(low)}, {_percent(high)}]"
