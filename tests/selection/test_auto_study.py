from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from idness.core.types import Activations
from idness.metrics import auroc
from tests.worlds import make_world

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    sys.path.insert(0, str(TOOLS))
    try:
        import auto_setups
        import auto_study
        import auto_tables

        yield SimpleNamespace(study=auto_study, tables=auto_tables, setups=auto_setups)
    finally:
        sys.path.remove(str(TOOLS))


def tiny(setups: ModuleType, name: str, seed: int, *, chosen_on: bool) -> Any:
    made = make_world(seed, width=24, count=60)
    faint = Activations(0.5 * made.test.features, made.head(0.5 * made.test.features))
    plan = setups.Plan("made up", lambda _: None, lambda _: {}, ("faint",), ("ood",), chosen_on=chosen_on)
    other = make_world(seed + 10, width=24, count=60).test.features
    pseudo = {"mosaic": Activations(other, made.head(other))}
    ood = {"faint": faint}, {"ood": made.ood}
    return setups.Setup(name, made.head, made.train, made.val, made.test, *ood, pseudo, plan)


@pytest.fixture(scope="module")
def studied(tools: SimpleNamespace) -> dict[str, Any]:
    known = {"old": tiny(tools.setups, "old", 0, chosen_on=True), "new": tiny(tools.setups, "new", 1, chosen_on=False)}
    found = {name: tools.study.study(setup) for name, setup in known.items()}
    return {
        "scores": {name: scored.scores for name, (_, scored) in found.items()},
        "results": {
            "command": "make auto",
            "networks": {name: item for name, (item, _) in found.items()},
            "passed over": {"vit": "a transformer"},
        },
    }


def test_figures_are_means_over_groups(studied: dict[str, Any]) -> None:
    network, scores = studied["results"]["networks"]["old"], studied["scores"]["old"]
    means = {
        row: (auroc(one["test"], one["faint"]) + auroc(one["test"], one["ood"])) / 2 for row, one in scores.items()
    }
    for row, item in network["methods"].items():
        assert item["mean"]["auroc"][0] == pytest.approx(means[row], abs=1e-5)
        assert item["difference to ebo"][0] == pytest.approx(means[row] - means["ebo"], abs=2e-5)
    singles = {row: value for row, value in means.items() if row not in ("fuse", "auto", "scale(auto)")}
    assert means[network["best single"]] == max(singles.values())
    assert network["regret"][0] == pytest.approx(max(singles.values()) - means["auto"], abs=2e-5)


def test_committed_tables_follow_from_the_figures(tools: SimpleNamespace, tmp_path: Path) -> None:
    folder = tools.study.RESULTS
    tools.study.write(json.loads((folder / "auto.json").read_text()), tmp_path)  # python tools/auto_study.py --tables
    for name in ("auto.json", "auto.md", "methods.json", "methods.md"):
        assert (tmp_path / name).read_text() == (folder / name).read_text(), name
