"""Rank the methods of a report, mark the best ones, and answer which method to use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from idness.benchmark.results import Answer, Metrics, Report, Rival
from idness.core.errors import IdnessError
from idness.core.options import plain
from idness.core.text import duration, listed, percentage, points, shorten
from idness.detectors.detector import Detector
from idness.detectors.registry import find
from idness.intervals import (
    Ranks,
    fpr_draws,
    images_needed,
    mean_auroc_difference,
    mean_auroc_interval,
    normal_quantile,
    ranks,
)
from idness.metrics import FPRS, Array, degenerate, title
from idness.selection.recommend import chosen_row

LEVEL = 0.95
DRAWS = 300
"""Bootstrap draws: only their standard deviation is used."""
USELESS = 0.6
"""Mean AUROC below which no method is recommended; chance is 0.5."""


def conclude(report: Report) -> Report:
    """Add the answer and the marks to a report that has neither yet, from its scores."""
    if report.answer is None:
        for row, method in report.methods.items():
            oods = np.concatenate([report.scores.of(row, name) for name in ood_weights(report)])
            method.degenerate = degenerate(report.scores.of(row, "id_test"), oods)
        report.answer = answer(report)
        mark_significance(report)
    return report


def answer(report: Report) -> Answer:
    """Return the method to use, and how it performs on the test sets.

    The method is chosen without them: by validation data, otherwise by the recommendation for the network (`Report.advised`).
    """
    weights = ood_weights(report)
    measured = {row: row_ranks(report, row, weights) for row in report.methods}
    found = {row: measured[row] for row in sorted(measured, key=lambda row: standing(report, row), reverse=True)}
    best, rivals = rivals_of_best(found, contenders(report))
    result = Answer(
        kind="clear",
        use=best,
        best=best,
        auroc={row: item.auroc for row, item in found.items()},
        intervals={row: mean_auroc_interval(item) for row, item in found.items()},
        rivals=rivals,
        sentence="",
        evidence=[],
    )
    chosen = _chosen(report)
    result.use = chosen or _simplest(report, [best, *result.ties])
    if not rivals:
        result.kind = "only"
    elif result.auroc[best] < USELESS:
        result.kind = "useless"
    elif result.use not in (best, *result.ties):
        result.kind = "behind"
    elif result.ties:
        result.kind = "tie"
    result.sentence = _sentence(report, result)
    result.evidence = [
        _criterion(report),
        *_by_set(report, result),
        *_by_group(report),
        _choice(report),
        *_gain(result.auroc, result.use),
    ]
    result.cost = _cost(report, result.use)
    return result


def best_first(report: Report) -> list[str]:
    """Return the methods by mean AUROC, degenerate ones last; in the order of the run if the report has no answer."""
    return list(report.answer.auroc) if report.answer else list(report.methods)


def setting(report: Report, row: str) -> str:
    """Return the options of a method that were searched, in words; all options if they were given or none was searched."""
    item = report.methods[row]
    searching = any(other.tried for other in report.methods.values())
    if item.chosen_by == "given" or not searching:
        return item.label.partition("(")[2].removesuffix(")")
    if len(item.tried) < 2:
        return ""
    searched = {key: item.options[key] for key in item.tried[0].options if key in item.options}
    # A text needs no name: react(percentile=85)+dice(percentile=10).
    return ", ".join(value if isinstance(value, str) else f"{key} {plain(value)}" for key, value in searched.items())


def unnamed_setting(report: Report, row: str) -> str:
    """Return `setting`, or nothing if the method's name already shows its options, as in `scale(percentile=95)`."""
    return "" if "(" in row else setting(report, row)


def ood_weights(report: Report) -> dict[str, float]:
    """Return the weight of each OOD test set: groups weigh the same, and so do the sets of a group."""
    groups = [sets for sets in report.benchmark.groups.values() if sets]
    weights: dict[str, float] = {}
    for sets in groups:
        for name in sets:
            weights[name] = weights.get(name, 0.0) + 1 / (len(groups) * len(sets))
    return weights


def mean_auroc(report: Report, row: str) -> float:
    """Return a method's mean AUROC, the mean of its group means."""
    return sum(weight * report.methods[row].sets[name].auroc for name, weight in ood_weights(report).items())


def standing(report: Report, row: str) -> tuple[bool, float]:
    """Return the sort key of methods, the best last: by mean AUROC, degenerate ones below all others."""
    return not report.methods[row].degenerate, mean_auroc(report, row)


def contenders(report: Report) -> list[str]:
    """Return the methods that may be the best: all but degenerate ones, unless there are no others."""
    able = [row for row, found in report.methods.items() if not found.degenerate]
    return able or list(report.methods)


def row_ranks(report: Report, row: str, weights: Mapping[str, float]) -> Ranks:
    """Return the ranks of a method's images over some OOD sets."""
    oods = [report.scores.of(row, name) for name in weights]
    return ranks(report.scores.of(row, "id_test"), oods, list(weights.values()))


def joint_level(rows: int) -> float:
    """Return the level of each comparison with the best at which all of them hold together (Bonferroni)."""
    return 1 - (1 - LEVEL) / max(rows - 1, 1)


def rivals_of_best(found: Mapping[str, Ranks], able: Collection[str]) -> tuple[str, list[Rival]]:
    """Return the method with the highest mean AUROC among `able`, and its lead over all others, nearest first."""
    best = max(able, key=lambda row: found[row].auroc)
    level = joint_level(len(found))
    leads = {row: mean_auroc_difference(found[best], found[row], level) for row in found if row != best}
    rivals = [Rival(row=row, lead=lead, tie=lead.low <= 0 and row in able) for row, lead in leads.items()]
    return best, sorted(rivals, key=lambda rival: rival.lead.value)


def mark_significance(report: Report) -> None:
    """Mark the best method and its ties in each metric, on each set and group; the marks of a column hold together at 95 %."""
    read, names, methods = report.scores.of, list(ood_weights(report)), report.methods
    scores = {row: (read(row, "id_test"), [read(row, name) for name in names]) for row in methods}
    draws = {metric: fpr_draws(scores, metric, report.recall, draws=DRAWS) for metric in FPRS}
    columns = [
        (sets, {row: methods[row].groups[group] for row in methods})
        for group, sets in report.benchmark.groups.items()
        if sets
    ]
    columns += [([name], {row: methods[row].sets[name] for row in methods}) for name in names]
    for sets, found in columns:
        places = [names.index(name) for name in sets]
        _write_marks("auroc", found, *_best_by_auroc(report, sets))
        for metric in FPRS:
            if all(metric in metrics.intervals for metrics in found.values()):  # otherwise too few images for a test
                drawn = {row: values[:, places].mean(axis=1) for row, values in draws[metric].items()}
                values = {row: getattr(found[row], metric) for row in contenders(report)}
                _write_marks(metric, found, *_best_by_fpr(values, drawn))


def too_few(report: Report, metric: str) -> dict[str, int]:
    """Return the sets that are too small for an interval of an FPR, with their numbers of images."""
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


def _best_by_auroc(report: Report, sets: Sequence[str]) -> tuple[str, list[str]]:
    """Return the best method and its ties by DeLong's paired test."""
    found = {row: row_ranks(report, row, dict.fromkeys(sets, 1.0)) for row in report.methods}
    best, rivals = rivals_of_best(found, contenders(report))
    return best, [rival.row for rival in rivals if rival.tie]


def _best_by_fpr(values: Mapping[str, float], drawn: Mapping[str, Array]) -> tuple[str, list[str]]:
    """Return the best method and its ties by a paired bootstrap."""
    best = min(values, key=lambda row: values[row])
    reach = -normal_quantile((1 - joint_level(len(values))) / 2)
    errors = {row: float((drawn[row] - drawn[best]).std()) for row in values}
    return best, [row for row in values if row != best and values[row] - values[best] <= reach * errors[row]]


def _write_marks(metric: str, found: Mapping[str, Metrics], best: str, ties: Sequence[str]) -> None:
    for row, metrics in found.items():
        metrics.marks.pop(metric, None)
        if row == best or row in ties:
            metrics.marks[metric] = "best" if row == best else "tie"


def _chosen(report: Report) -> str | None:
    """Return the method that is recommended without the test sets, as by every command."""
    if report.advised in report.methods:
        return report.advised
    return chosen_row({row: found.validation_auroc for row, found in report.methods.items()})


def _simplest(report: Report, rows: list[str]) -> str:
    """Choose among tied methods: one without training images, if possible also without options to choose."""
    plain = [row for row in rows if not getattr(_class(report, row), "needs_train", True)]
    fixed = [row for row in plain if len(report.methods[row].tried) < 2]
    return [*fixed, *plain, *rows][0]


def _class(report: Report, row: str) -> type[Detector] | None:
    """Return the class of a method; None if it is not a registered one."""
    try:
        return find(report.methods[row].method)[0]
    except IdnessError:
        return None


def _sentence(report: Report, found: Answer) -> str:
    def named(row: str) -> str:
        options = unnamed_setting(report, row)
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
        simple = " It needs no training images" + (" and no options." if len(report.methods[use].tried) < 2 else ".")
        word = "better than" if use == best else "different from"
        return f"{start} Not significantly {word} {listed(some)}.{'' if use == best or _chosen(report) else simple}"
    rival = found.rivals[0] if use == best else next(rival for rival in found.rivals if rival.row == use)
    low, high = percentage(rival.lead.low), percentage(rival.lead.high)
    lead = f"{percentage(rival.lead.value)} points (95 % interval {low} to {high})"
    if found.kind == "behind":
        return f"{start} It was chosen without the test images; on these, {shorten(best)} is better by {lead}."
    return f"{start} Significantly better than every other method; the next is {shorten(rival.row)}, behind by {lead}."


def _criterion(report: Report) -> str:
    groups = [shorten(name) for name, sets in report.benchmark.groups.items() if sets]
    over = f"the mean of the {listed(groups)} means" if len(groups) > 1 else f"the mean over the {groups[0]} sets"
    return (
        f"Methods are ranked by mean AUROC on the test sets, {over}. Two methods are tied if the 95 % interval of their paired"
        f" difference (DeLong, adjusted for {len(report.methods) - 1} comparisons) contains zero."
    )


def _by_set(report: Report, found: Answer) -> list[str]:
    """Compare the recommended method with the runner-up, or with the best one if it is another."""
    if not found.rivals:
        return []
    use, leads = found.use, found.use == found.best
    second, who = (found.rivals[0].row, "the runner-up") if leads else (found.best, "the best on the test sets")
    sides: dict[str, list[str]] = {"better": [], "worse": [], "undecided": []}
    for name in ood_weights(report):
        one, other = (row_ranks(report, row, {name: 1.0}) for row in (use, second))
        gap = mean_auroc_difference(one, other)
        sides["better" if gap.low > 0 else "worse" if gap.high < 0 else "undecided"].append(shorten(name))
    parts = [f"{word} on {len(names)} ({listed(names)})" for word, names in sides.items() if names]
    return [
        f"By set, compared with {shorten(second)}, {who}, {shorten(use)} is {', '.join(parts)} (paired DeLong test)."
    ]


def _by_group(report: Report) -> list[str]:
    """Name the best method of each group if they differ."""
    leaders = {}
    for group, sets in report.benchmark.groups.items():
        if sets:
            best, ties = _best_by_auroc(report, sets)
            leaders[group] = (best, report.methods[best].groups[group].auroc, len(ties))
    if len({best for best, _, _ in leaders.values()}) < 2:
        return []
    parts = [
        f"{shorten(best)} is best on {shorten(group)} OOD ({percentage(auroc, 1)} %{f', {ties} tied' if ties else ''})"
        for group, (best, auroc, ties) in leaders.items()
    ]
    return [f"{'; '.join(parts)}. If one kind matters more to you, choose by it."]


def _choice(report: Report) -> str:
    """Return what the choice of the method and of its options is based on."""
    start = "The options were chosen on validation data only."
    if all(found.validation_auroc is None for found in report.methods.values()):
        start = "There is no OOD validation set, so every method has its default options."
    if report.advised in report.methods:
        return f"{start} The method was chosen without the test sets: {report.advised_why}"
    if report.advised:
        reason = report.failed.get(report.advised, "it was not among the methods")
        return f"{start} {report.advised_why} It was not measured here: {reason}."
    if _chosen(report):
        return f"{start} So was the method."
    return f"{start} The best method by test results is an optimistic choice."


def _cost(report: Report, row: str) -> str:
    """Return what a score costs beside the network's own pass."""
    found, method = report.methods[row], _class(report, row)
    passes = (method.forward_passes - 1, method.backward_passes) if method else (0, 0)
    more = [
        f"{count} more {name} pass{'es' if count > 1 else ''} of the network"
        for count, name in zip(passes, ("forward", "backward"), strict=True)
        if count
    ]
    images = sum(info.images for name, info in report.sets.items() if name == "id_test" or name in ood_weights(report))
    each = 1000 * found.seconds.get("score", 0.0) / max(images, 1)
    fit = f"; {duration(found.seconds.get('fit', 0.0))} to fit" if method and method.needs_train else ""
    return f"Cost: {listed([*more, f'{each:.2g} ms per image'])}{fit}."


def _gain(auroc: Mapping[str, float], use: str) -> list[str]:
    if "msp" not in auroc or use == "msp":
        return []
    gain = points(auroc[use] - auroc["msp"])
    return [f"Compared with msp, the plain softmax confidence, {shorten(use)} gains {gain} points."]
