from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from idness.core.types import Activations
from idness.detectors.catalogue import catalogue
from idness.metrics import auroc
from tests.worlds import make_world

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    sys.path.insert(0, str(TOOLS))
    try:
        import auto_left_out
        import auto_study
        import auto_tables
        import auto_worlds
        import methods_table

        yield SimpleNamespace(
            left_out=auto_left_out, study=auto_study, tables=auto_tables, worlds=auto_worlds, methods=methods_table
        )
    finally:
        sys.path.remove(str(TOOLS))


def tiny(worlds: ModuleType, name: str, seed: int, *, chosen_on: bool) -> Any:
    """A network that exists only as activations: near images are half known, far ones not at all."""
    made = make_world(seed, width=24, count=60)
    faint = Activations(0.5 * made.test.features, made.head(0.5 * made.test.features))
    plan = worlds.Plan("made up", lambda _: None, lambda _: {}, ("faint",), ("ood",), chosen_on=chosen_on)
    other = make_world(seed + 10, width=24, count=60).test.features
    pseudo = {"mosaic": Activations(other, made.head(other))}
    ood = {"faint": faint}, {"ood": made.ood}
    return worlds.World(name, made.head, made.train, made.val, made.test, *ood, pseudo, plan)


@pytest.fixture(scope="module")
def studied(tools: SimpleNamespace) -> dict[str, Any]:
    known = {"old": tiny(tools.worlds, "old", 0, chosen_on=True), "new": tiny(tools.worlds, "new", 1, chosen_on=False)}
    found = {name: tools.study.study(world) for name, world in known.items()}
    return {
        "worlds": known,
        "scores": {name: scored.scores for name, (_, scored) in found.items()},
        "results": {
            "command": "make auto",
            "networks": {name: item for name, (item, _) in found.items()},
            "passed over": {"vit": "a transformer"},
            "left out": {},
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
    assert network["best at any option"]["auroc"] >= max(singles.values()) - 1e-5


def test_page_tells_what_was_looked_at_and_what_was_missed(tools: SimpleNamespace, studied: dict[str, Any]) -> None:
    results = copy.deepcopy(studied["results"])
    methods = results["networks"]["new"]["methods"]
    methods["auto"]["difference to ebo"] = [0.004, 0.0, 0.008]
    methods["fuse"]["difference to ebo"] = [-0.002, -0.003, 0.0]
    methods["scale"]["difference to ebo"] = [0.02, 0.01, 0.03]
    results["networks"]["new"]["regret"] = [0.031, 0.02, 0.04]
    page = tools.tables.page(results)
    (line,) = [line for line in page.splitlines() if line.startswith("- new:")]
    best = results["networks"]["new"]["best single"]
    assert f"`auto` is only +0.40 above EBO; `auto` is 3.10 below {best}; `fuse` is 0.20 below EBO" in line
    assert "`auto` is 1.60 below SCALE" in line
    assert "**made up (`new`)**" in page
    assert "| made up (`old`) |" in page
    assert "**Not looked at for any choice**: new." in page
    assert "not asked for: a transformer (`vit`)." in page
    assert page.count("<details") == page.count("</details>") == 2


def blind_on(near: float, far: float, seed: int) -> dict[str, torch.Tensor]:
    """Scores that tell near and far images from known ones by so many standard deviations."""
    rng = torch.Generator().manual_seed(seed)
    shifts = {"val": 0.0, "test": 0.0, "faint": near, "ood": far}
    return {name: 10 - shift + torch.randn(200, generator=rng) for name, shift in shifts.items()}


def test_choice_without_a_network_does_not_see_it(tools: SimpleNamespace) -> None:
    names = (["faint"], ["ood"])
    rows = {"ebo": (0.5, 0.5), "sees-near": (3.0, 0.0), "sees-far": (0.0, 3.0)}
    old, new = ({row: blind_on(*rows[row], 3 * seed + place) for place, row in enumerate(rows)} for seed in range(2))
    networks = {"a": (old, *names, "one"), "b": (old, *names, "one"), "c": (new, *names, "c")}
    before = tools.left_out.left_out(networks)
    upside_down = {row: {name: -values for name, values in one.items()} for row, one in new.items()}
    after = tools.left_out.left_out(networks | {"c": (upside_down, *names, "c")})
    assert before["a"]["chosen on"] == ["c"]
    assert before["c"]["parts"] == after["c"]["parts"] == ["sees-far", "sees-near"]
    assert after["a"]["parts"] != before["a"]["parts"]
    z = {
        name: sum(
            (new[row][name] - new[row]["val"].mean()) / new[row]["val"].std(correction=0)
            for row in rows
            if row != "ebo"
        )
        for name in ("test", "faint", "ood")
    }
    plain = np.mean([auroc(new["ebo"]["test"], new["ebo"][name]) for name in ("faint", "ood")])
    summed = np.mean([auroc(z["test"], z[name]) for name in ("faint", "ood")])
    assert before["c"]["difference to ebo"] == pytest.approx(summed - plain, abs=1e-4)


def test_classes_that_are_cut_become_a_near_set(tools: SimpleNamespace) -> None:
    labels = torch.arange(10).repeat(2)
    head = {"weight": torch.randn(10, 4), "bias": torch.arange(10.0)}
    item = {"features": torch.arange(20.0)[:, None].expand(20, 4), "logits": torch.randn(20, 10), "labels": labels}
    stand_ins = {"features": item["features"][:7], "logits": item["logits"][:7]}
    found = {"id_test": item, "id_val": item, "pseudo-mosaic": stand_ins, "far": {**stand_ins}}
    cut_head, cut = tools.worlds._without_classes(7, head, found)
    kept = cut_head["bias"].long()
    assert len(cut["heldout"]["logits"]) == 6
    assert not set(labels[cut["heldout"]["features"][:, 0].long()].tolist()) & set(kept.tolist())
    rows = cut["id_test"]["features"][:, 0].long()
    assert torch.equal(kept[cut["id_test"]["labels"]], labels[rows])
    assert torch.equal(cut["id_test"]["logits"], item["logits"][rows][:, kept])
    assert cut["pseudo-mosaic"]["features"][:, 0].tolist() == [row for row in range(7) if row in kept.tolist()]
    assert cut["far"]["logits"].shape == (7, 7)


def test_methods_stand_beside_what_they_need(tools: SimpleNamespace, studied: dict[str, Any]) -> None:
    networks = studied["results"]["networks"]
    found = tools.methods.table(networks, catalogue(), {"old": tools.methods.costs(studied["worlds"]["old"])})
    values = [network["methods"]["knn"]["difference to ebo"][0] for network in networks.values()]
    assert found["knn"]["mean"] == pytest.approx(np.mean(values), abs=1e-5)
    assert found["knn"]["worst"] == min(values)
    assert found["ebo"]["cost"]["old"] == 1.0
    assert {"ash-s", "ash-p", "ash-b", "fuse"} <= set(found)
    results = {"command": "x", "networks": list(networks), "timed": {"old": "small"}, "load": "", "methods": found}
    page = tools.methods.page(results)
    (row,) = [line for line in page.splitlines() if line.startswith("| mds |") and "train, labels" in line]
    assert row.split(" | ")[4:6] == ["no", "1"]
