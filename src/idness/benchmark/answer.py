"""Ranking of the methods of a report, marks of the best ones, and the recommendation of a method."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from statistics import NormalDist

import numpy as np

from idness.benchmark.results import Answer, Report, Rival, best_first, ood_weights
from idness.core.errors import IdnessError
from idness.core.options import plain
from idness.core.text import duration, listed, percentage, points, shorten
from idness.detectors.registry import find
from idness.intervals import Ranks, fpr_draws, images_needed, mean_auroc_difference, mean_auroc_interval, ranks
from idness.metrics import FPRS, Array, Convention, degenerate, title
from idness.selection.recommend import chosen_row

LEVEL = 0.95
DRAWS = 300
"""Number of bootstrap draws, of which only the standard deviation is used."""
USELESS = 0.6
"""Mean AUROC below which no method is recommended; chance is 0.5."""


def conclude(report: Report) -> Report:
    """Add the answer and the marks to a report without them, computed from its scores."""
    if report.answer is None:
        for row, method in report.methods.items():
            oods = np.concatenate([report.scores.of(row, name) for name in ood_weights(report)])
            method.degenerate = degenerate(report.scores.of(row, "id_test"), oods)
        report.answer = answer(report)
        mark_significance(report)
    return report


def answer(report: Report) -> Answer:
    """Return the method to use, and its performance on the test sets.

    The method is chosen without the test sets: by validation data, otherwise by the recommendation for the network (`Report.advised`).
    """
    weights = ood_weights(report)
    found = {row: row_ranks(report, row, weights) for row in best_first(report)}
    best, rivals = rivals_of_best(found, contenders(report))
    leading = [best, *(rival.row for rival in rivals if rival.tie)]
    use = _chosen(report) or best
    result = Answer(
        kind="clear" if len(leading) == 1 else "tie",
        use=use,
        best=best,
        auroc={row: item.auroc for row, item in found.items()},
        intervals={row: mean_auroc_interval(item) for row, item in found.items()},
        rivals=rivals,
        sentence="",
        evidence=[],
        cost=_cost(report, use),
    )
    if not rivals:
        result.kind = "only"
    elif result.auroc[best] < USELESS:
        result.kind = "useless"
    elif use not in leading:
        result.kind = "behind"
    result.sentence = _sentence(report, result)
    result.evidence = _evidence(report, result)
    return result


def setting(report: Report, row: str) -> str:
    """Return the searched options of a method in words, or all options if they were given or none was searched.

    Empty if the name of the method already contains its options, as in `scale(percentile=95)`.
    """
    item = report.methods[row]
    if "(" in row:
        return ""
    if item.chosen_by == "given" or not any(other.tried for other in report.methods.values()):
        return item.label.partition("(")[2].removesuffix(")")
    if len(item.tried) < 2:
        return ""
    searched = {key: item.options[key] for key in item.tried[0]["options"] if key in item.options}
    # A string needs no name: react(percentile=85)+dice(percentile=10).
    return ", ".join(value if isinstance(value, str) else f"{key} {plain(value)}" for key, value in searched.items())


def contenders(report: Report) -> list[str]:
    """Return the methods that can be the best: all except degenerate ones, unless there are no others."""
    return [row for row, found in report.methods.items() if not found.degenerate] or list(report.methods)


def row_ranks(report: Report, row: str, weights: Mapping[str, float]) -> Ranks:
    """Return the ranks of a method's scores over the given OOD sets."""
    oods = [report.scores.of(row, name) for name in weights]
    return ranks(report.scores.of(row, "id_test"), oods, list(weights.values()))


def joint_level(rows: int) -> float:
    """Return the level of each comparison with the best method at which all hold jointly (Bonferroni)."""
    return 1 - (1 - LEVEL) / max(rows - 1, 1)


def rivals_of_best(found: Mapping[str, Ranks], able: Collection[str]) -> tuple[str, list[Rival]]:
    """Return the method with the highest mean AUROC among `able`, and its lead over all others, nearest first."""
    best = max(able, key=lambda row: found[row].auroc)
    level = joint_level(len(found))
    leads = {row: mean_auroc_difference(found[best], found[row], level) for row in found if row != best}
    rivals = [Rival(row=row, lead=lead, tie=lead.low <= 0 and row in able) for row, lead in leads.items()]
    return best, sorted(rivals, key=lambda rival: rival.lead.value)


def mark_significance(report: Report) -> None:
    """Mark the best method and its ties in each metric, on each set and group; the marks of a column hold jointly at 95 %."""
    names, able = list(ood_weights(report)), contenders(report)
    draws = {metric: draw_fprs(report, metric, list(report.methods), DRAWS) for metric in FPRS}
    columns = [("groups", group, sets) for group, sets in report.benchmark.groups.items()]
    for kind, column, sets in [*columns, *(("sets", name, [name]) for name in names)]:
        found = {row: getattr(method, kind)[column] for row, method in report.methods.items()}
        best = {"auroc": _best_by_auroc(report, sets)}
        for metric in FPRS:
            if all(metric in metrics.intervals for metrics in found.values()):  # otherwise too few images for a test
                places = [names.index(name) for name in sets]
                drawn = {row: values[:, places].mean(axis=1) for row, values in draws[metric].items()}
                best[metric] = _best_by_fpr({row: getattr(found[row], metric) for row in able}, drawn)
        for name, (first, *ties) in best.items():
            found[first].marks[name] = "best"
            for row in ties:
                found[row].marks[name] = "tie"


def draw_fprs(report: Report, metric: Convention, rows: Sequence[str], draws: int) -> dict[str, Array]:
    """Return bootstrap draws of the FPR of the given methods on every OOD set, as from `fpr_draws`."""
    read, names = report.scores.of, ood_weights(report)
    scores = {row: (read(row, "id_test"), [read(row, name) for name in names]) for row in rows}
    return fpr_draws(scores, metric, report.recall, draws=draws)


def too_few(report: Report, metric: str) -> dict[str, int]:
    """Return the sets that are too small for an interval of an FPR, with their number of images."""
    names = ["id_test"] if metric == "fpr_at_id_recall" else ood_weights(report)
    needed = images_needed(report.recall, LEVEL)
    return {name: report.sets[name].images for name in names if report.sets[name].images < needed}


def without_interval(report: Report) -> list[str]:
    """Return a sentence for each FPR that has no interval on some sets, with the number of images needed."""
    needed, found = images_needed(report.recall, LEVEL), []
    for metric in FPRS:
        few = ", ".join(f"{name} ({images:,})" for name, images in too_few(report, metric).items())
        if few:
            found.append(f"no interval for {title(metric, report.recall)}: needs at least {needed} images, got {few}")
    return found


def _best_by_auroc(report: Report, sets: Sequence[str]) -> list[str]:
    """Return the best method and its ties by DeLong's paired test."""
    found = {row: row_ranks(report, row, dict.fromkeys(sets, 1.0)) for row in report.methods}
    best, rivals = rivals_of_best(found, contenders(report))
    return [best, *(rival.row for rival in rivals if rival.tie)]


def _best_by_fpr(values: Mapping[str, float], drawn: Mapping[str, Array]) -> list[str]:
    """Return the best method and its ties by a paired bootstrap."""
    best = min(values, key=lambda row: values[row])
    reach = -NormalDist().inv_cdf((1 - joint_level(len(values))) / 2)
    errors = {row: float((drawn[row] - drawn[best]).std()) for row in values}
    return [best, *(row for row in values if row != best and values[row] - values[best] <= reach * errors[row])]


def _chosen(report: Report) -> str | None:
    """Return the method that all commands recommend, which does not depend on the test sets."""
    if report.advised in report.methods:
        return report.advised
    return chosen_row({row: found.validation_auroc for row, found in report.methods.items()})


def _sentence(report: Report, found: Answer) -> str:
    def named(row: str) -> str:
        options = setting(report, row)
        return f"{shorten(row)}({shorten(options, 80)})" if options else shorten(row)

    def value(row: str) -> str:
        return f"{percentage(found.auroc[row], 1)} %"

    best, use = found.best, found.use
    if found.kind == "only":
        return f"Only {named(best)} was measured (mean AUROC {value(best)}); run more methods to compare it."
    if found.kind == "useless":
        return f"No recommendation: the best method, {named(best)}, has a mean AUROC of {value(best)}; chance is 50 %."
    start = f"Recommended: {named(use)} (mean AUROC {value(use)})."
    if found.kind == "tie":
        others = [f"{shorten(row)} ({value(row)})" for row in (best, *found.ties) if row != use]
        some = others if len(others) <= 4 else [*others[:3], f"{len(others) - 3} more"]
        word = "better than" if use == best else "different from"
        return f"{start} Not significantly {word} {listed(some)}."
    rival = found.rivals[0] if use == best else next(rival for rival in found.rivals if rival.row == use)
    low, high = percentage(rival.lead.low), percentage(rival.lead.high)
    lead = f"{percentage(rival.lead.value)} points (95 % interval {low} to {high})"
    if found.kind == "behind":
        return f"{start} It was chosen without the test images, on which {shorten(best)} is better by {lead}."
    return f"{start} Significantly better than every other method; the next is {shorten(rival.row)}, behind by {lead}."


def _evidence(report: Report, found: Answer) -> list[str]:
    """Return how methods are ranked, where the recommended one is better or worse, and what the choice is based on."""
    use, groups = shorten(found.use), [shorten(name) for name in report.benchmark.groups]
    over = f"the mean of the {listed(groups)} means" if len(groups) > 1 else f"the mean over the {groups[0]} sets"
    lines = [
        f"Methods are ranked by mean AUROC on the test sets, {over}. Two methods are tied if the 95 % interval of their paired"
        f" difference (DeLong, adjusted for {len(report.methods) - 1} comparisons) contains zero."
    ]
    if found.rivals:  # by set: against the runner-up, or against the best method if it is another
        leads = found.use == found.best
        second, who = (found.rivals[0].row, "the runner-up") if leads else (found.best, "the best on the test sets")
        sides: dict[str, list[str]] = {"better": [], "worse": [], "undecided": []}
        for name in ood_weights(report):
            one, other = (row_ranks(report, row, {name: 1.0}) for row in (found.use, second))
            gap = mean_auroc_difference(one, other)
            sides["better" if gap.low > 0 else "worse" if gap.high < 0 else "undecided"].append(shorten(name))
        parts = ", ".join(f"{word} on {len(names)} ({listed(names)})" for word, names in sides.items() if names)
        lines.append(f"By set, compared with {shorten(second)}, {who}, {use} is {parts} (paired DeLong test).")
    leaders = {group: _best_by_auroc(report, sets)[0] for group, sets in report.benchmark.groups.items()}
    if len(set(leaders.values())) > 1:
        parts = listed([f"{shorten(best)} on {shorten(group)} OOD" for group, best in leaders.items()])
        lines.append(f"Different methods are best: {parts}. If one group matters more to you, use its best method.")
    lines.append(_choice(report))
    if "msp" in found.auroc and found.use != "msp":
        gain = points(found.auroc[found.use] - found.auroc["msp"])
        lines.append(f"Compared with msp, the softmax baseline, {use} gains {gain} points.")
    return lines


def _choice(report: Report) -> str:
    """Return the basis of the choice of the method and its options."""
    start = "The options were chosen on validation data only."
    if all(found.validation_auroc is None for found in report.methods.values()):
        start = "There is no OOD validation set, so every method has its default options."
    if report.advised in report.methods:
        why = report.advised_why.removeprefix("Recommended: ")
        return f"{start} The method was chosen without the test sets: {why}"
    if report.advised:
        reason = report.failed.get(report.advised, "it was not among the methods")
        return f"{start} {report.advised_why} It was not measured here: {reason}."
    if _chosen(report):
        return f"{start} The method was chosen in the same way."
    return f"{start} The method was chosen by test results, which is optimistic."


def _cost(report: Report, row: str) -> str:
    """Return the cost of a score in addition to the network's own pass."""
    seconds = report.methods[row].seconds
    images = sum(info.images for name, info in report.sets.items() if name == "id_test" or name in ood_weights(report))
    parts, fit = [f"{1000 * seconds.get('score', 0.0) / max(images, 1):.2g} ms per image"], ""
    with suppress(IdnessError):  # a user's class is not registered
        method = find(report.methods[row].method)[0]
        passes = {"forward": method.forward_passes - 1, "backward": method.backward_passes}
        more = [f"{n} more {name} pass{'es' if n > 1 else ''} of the network" for name, n in passes.items() if n]
        parts = [*more, *parts]
        fit = f"; {duration(seconds.get('fit', 0.0))} to fit" if method.needs_train else ""
    return f"Cost: {listed(parts)}{fit}."
