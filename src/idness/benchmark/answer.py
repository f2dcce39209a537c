"""Answers which method to use on a network, and how sure that is."""

from __future__ import annotations

import numpy as np

from idness.benchmark.parts import Answer
from idness.benchmark.ranking import contenders, mark, ood_weights, rivals_of_best, row_ranks, standing
from idness.benchmark.results import Report
from idness.core.errors import InputError
from idness.core.method_text import plain
from idness.core.wording import duration, listed, percent, points, shown
from idness.intervals import mean_auroc_difference, mean_auroc_interval
from idness.metrics import degenerate
from idness.selection.recommend import chosen_row

USELESS = 0.6
"""A mean AUROC below which no method is worth recommending: a coin has 0.5."""


def conclude(report: Report) -> Report:
    """Fill in the answer and the marks of a report that has neither yet, from its scores."""
    if report.answer is None:
        for row, method in report.methods.items():
            oods = np.concatenate([report.scores.of(row, name) for name in ood_weights(report)])
            method.degenerate = degenerate(report.scores.of(row, "id_test"), oods)
        report.answer = answer(report)
        mark(report)
    return report


def answer(report: Report) -> Answer:
    """Say which method to use, and what the test sets say of that choice.

    The row is chosen without them: by validation data, else by what the network shows on ID images (`Report.advised`).
    """
    if not report.methods:
        raise InputError("answer: needs at least one method that ran, got none")
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
    ties = result.ties
    result.use = _chosen(report) or _simplest(report, [best, *ties])
    if not rivals:
        result.kind, result.sentence = "only", _only(report, result)
    elif result.auroc[best] < USELESS:
        result.kind, result.sentence = "useless", _useless(report, result)
    elif result.use not in (best, *ties):
        result.kind, result.sentence = "behind", _behind(report, result)
    elif ties:
        result.kind, result.sentence = "tie", _tie(report, result)
    else:
        result.sentence = _clear(report, result)
    result.evidence = [
        _criterion(report),
        *_set_by_set(report, result),
        *_by_group(report),
        *_on_validation(report),
        *_gain(result.auroc, result.use),
    ]
    result.cost = _cost(report, result.use)
    return result


def best_first(report: Report) -> list[str]:
    """List the rows as every view shows them: by mean AUROC, degenerate ones last; as they ran where there is no answer."""
    return list(report.answer.auroc) if report.answer else list(report.methods)


def _chosen(report: Report) -> str | None:
    """Name the row that is recommended without a look at the test sets, as every command does."""
    measured = chosen_row({row: found.validation_auroc for row, found in report.methods.items()})
    return measured or (report.advised if report.advised in report.methods else None)


def _simplest(report: Report, rows: list[str]) -> str:
    """Choose among rows that cannot be told apart: one without training images, if possible also without options to choose."""
    from idness.detectors.registry import available

    every = available()
    plain = [row for row in rows if not getattr(every.get(report.methods[row].method), "needs_train", True)]
    fixed = [row for row in plain if len(report.methods[row].tried) < 2]
    return [*fixed, *plain, *rows][0]


def _behind(report: Report, found: Answer) -> str:
    ahead = next(rival.lead for rival in found.rivals if rival.row == found.use)
    return (
        f"Use {_named(report, found.use)}, mean AUROC {percent(found.auroc[found.use], 1)} %: it was chosen without a look at"
        f" these test images; in hindsight {shown(found.best)} is {percent(ahead.value)} points ahead"
        f" ({percent(ahead.low)} to {percent(ahead.high)} with 95 % confidence)."
    )


def _simplicity(report: Report, use: str) -> str:
    if len(report.methods[use].tried) < 2:
        return ", and it needs neither training images nor options"
    return ", and it needs no training images"


def _named(report: Report, row: str) -> str:
    options = setting(report, row)
    return f"{shown(row)} ({shown(options, 80)})" if options else shown(row)


def _only(report: Report, found: Answer) -> str:
    return (
        f"Only {_named(report, found.best)} was measured: its mean AUROC is {percent(found.auroc[found.best], 1)} %,"
        " and nothing says whether another method would do better."
    )


def _useless(report: Report, found: Answer) -> str:
    return (
        f"No method is of use on this network: the best, {_named(report, found.best)}, has a mean AUROC of"
        f" {percent(found.auroc[found.best], 1)} %, where a coin has 50 %."
    )


def _tie(report: Report, found: Answer) -> str:
    others = [shown(name) for name in (found.best, *found.ties) if name != found.use]
    some = others if len(others) <= 4 else [*others[:3], f"{len(others) - 3} more"]
    why = "" if found.use == found.best or _chosen(report) else _simplicity(report, found.use)
    return (
        f"Use {_named(report, found.use)}, mean AUROC {percent(found.auroc[found.use], 1)} %: on this data it cannot be"
        f" told apart from {listed(some)}{why}."
    )


def _clear(report: Report, found: Answer) -> str:
    near = found.rivals[0]
    return (
        f"Use {_named(report, found.best)}, mean AUROC {percent(found.auroc[found.best], 1)} %: it is ahead of every other"
        f" method, the nearest being {shown(near.row)}, {percent(near.lead.value)} points behind"
        f" ({percent(near.lead.low)} to {percent(near.lead.high)} with 95 % confidence)."
    )


def _criterion(report: Report) -> str:
    groups = [shown(name) for name, sets in report.benchmark.groups.items() if sets]
    over = f"the mean of the {listed(groups)} means" if len(groups) > 1 else f"the mean over the {groups[0]} sets"
    others = len(report.methods) - 1
    return (
        f"Rows are ranked by mean AUROC, {over}, on test data. Two rows count as level when the 95 % interval of"
        f" their paired difference (DeLong, allowing for {others} comparisons) holds zero."
    )


def _set_by_set(report: Report, found: Answer) -> list[str]:
    """Compare the row to use with the runner-up, or with the best where it is not that."""
    if not found.rivals:
        return []
    best, leads = found.use, found.use == found.best
    second, who = (found.rivals[0].row, "the runner-up") if leads else (found.best, "the best in hindsight")
    sides: dict[str, list[str]] = {"better": [], "worse": [], "undecided": []}
    for name in ood_weights(report):
        one, other = (row_ranks(report, row, {name: 1.0}) for row in (best, second))
        gap = mean_auroc_difference(one, other)
        sides["better" if gap.low > 0 else "worse" if gap.high < 0 else "undecided"].append(shown(name))
    parts = [f"{word} on {len(names)} ({listed(names)})" for word, names in sides.items() if names]
    return [
        f"Set by set against {shown(second)}, {who}, {shown(best)} is {', '.join(parts)} (paired DeLong test, 95 %)."
    ]


def _by_group(report: Report) -> list[str]:
    """Say so when near and far sets have different leaders."""
    leaders = {}
    for group, sets in report.benchmark.groups.items():
        if sets:
            found = {row: row_ranks(report, row, dict.fromkeys(sets, 1.0)) for row in report.methods}
            best, rivals = rivals_of_best(found, contenders(report))
            leaders[group] = (best, found[best].auroc, sum(rival.tie for rival in rivals))
    if len({best for best, _, _ in leaders.values()}) < 2:
        return []
    parts = [
        f"{shown(best)} leads on {shown(group)} OOD ({percent(auroc, 1)} %"
        + (f", level with {ties} other{'s' if ties > 1 else ''})" if ties else ")")
        for group, (best, auroc, ties) in leaders.items()
    ]
    return [f"{'; '.join(parts)}: if one kind matters more to you, choose by it."]


def _on_validation(report: Report) -> list[str]:
    """Say what the choice of the row and of its options rests on."""
    if any(found.validation_auroc is not None for found in report.methods.values()):
        return ["The method and its options were chosen on validation data only; test results had no say."]
    said = "There was no OOD validation set, so every method ran with its default options"
    if report.advised in report.methods:
        return [f"{said}, and the method was chosen by what the network shows on ID images: {report.advised_why}"]
    return [
        f"{said}; a search on validation data may change the order, and naming a winner by test results flatters it."
    ]


def _cost(report: Report, row: str) -> str:
    """Say what a score costs beside the network's own pass."""
    from idness.detectors.registry import available

    found = report.methods[row]
    method = available().get(found.method)
    passes = (method.forward_passes - 1, method.backward_passes) if method else (0, 0)
    more = [
        f"{count} more {name} pass{'es' if count > 1 else ''} of the network"
        for count, name in zip(passes, ("forward", "backward"), strict=True)
        if count
    ]
    images = sum(info.images for name, info in report.sets.items() if name == "id_test" or name in ood_weights(report))
    each = 1000 * found.seconds.get("score", 0.0) / max(images, 1)
    fit = found.seconds.get("fit", 0.0)
    learned = f", after {duration(fit)} to learn from training images" if method and method.needs_train else ""
    return f"It costs {listed([*more, f'{each:.2g} ms of scoring an image'])}{learned}."


def _gain(auroc: dict[str, float], use: str) -> list[str]:
    if "msp" not in auroc or use == "msp":
        return []
    return [
        f"Against msp, the plain softmax confidence that costs nothing, {shown(use)} gains"
        f" {points(auroc[use] - auroc['msp'])} points."
    ]


def setting(report: Report, row: str) -> str:
    """Write the options that were searched for a row, in words; all of them where they were given or none was searched."""
    item = report.methods[row]
    searching = any(other.tried for other in report.methods.values())
    if item.chosen_by == "given" or not searching:
        return item.label.partition("(")[2].removesuffix(")")
    if len(item.tried) < 2:
        return ""
    searched = {key: item.options[key] for key in item.tried[0].options if key in item.options}
    # A text says by itself what it is: react(percentile=85)+dice(percentile=10).
    return ", ".join(value if isinstance(value, str) else f"{key} {plain(value)}" for key, value in searched.items())
