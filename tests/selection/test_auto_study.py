from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
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
        import auto_kinds
        import auto_left_out
        import auto_study
        import auto_tables
        import auto_worlds
        import methods_table

        yield SimpleNamespace(
            kinds=auto_kinds,
            left_out=auto_left_out,
            study=auto_study,
            tables=auto_tables,
            worlds=auto_worlds,
            methods=methods_table,
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
    return worlds.World(name, made.head, made.train, made.val, made.test, *ood, pseudo, {"tiles": made.ood}, plan)


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


def test_page_tells_what_was_looked_at_and_what_was_missed(
    tools: SimpleNamespace, studied: dict[str, Any], cases: dict[str, Any]
) -> None:
    results = copy.deepcopy(studied["results"])
    chosen = tools.left_out.left_out(cases)["c"] | {"difference to ebo": 0.0123, "difference to the best single": -0.02}
    results["left out"] = {"new": chosen}
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
    (row,) = [line for line in page.splitlines() if line.startswith("| new | sees")]
    assert row == (
        f"| new | sees-far + sees-near | good | 1 | {chosen['spearman']:.2f} | the fusion | +1.2 | -2.0 | no scaling | +0.0 | +0.4 | -3.1 |"
    )
    assert "**made up (`new`)**" in page
    assert "| made up (`old`) |" in page
    assert "**Not looked at for any choice**: new." in page
    assert "not asked for: a transformer (`vit`)." in page
    assert page.count("<details") == page.count("</details>") == 2


def blind_on(near: float, far: float, seed: int, seen: float = 0.0) -> dict[str, torch.Tensor]:
    """Scores that tell near, far and stand-in images from known ones by so many standard deviations."""
    rng = torch.Generator().manual_seed(seed)
    shifts = {"val": 0.0, "test": 0.0, "faint": near, "ood": far, "stand-in good": near + far, "stand-in bad": seen}
    return {name: 10 - shift + torch.randn(200, generator=rng) for name, shift in shifts.items()}


def negated(scores: dict[str, Any]) -> dict[str, Any]:
    return {row: {name: -values for name, values in one.items()} for row, one in scores.items()}


@pytest.fixture
def cases(tools: SimpleNamespace) -> dict[str, Any]:
    """Two networks of one family and one of another; on both only a sum sees everything, and one kind of stand-in misleads."""
    rows = {
        "ebo": (0.5, 0.5, 3.0),
        "sees-near": (3.0, 0.0, 0.0),
        "sees-far": (0.0, 3.0, 0.0),
        "worst": (-1.0, -1.0, 5.0),
    }
    old, new = (
        {
            row: blind_on(near, far, 5 * seed + place, seen)
            for place, (row, (near, far, seen)) in enumerate(rows.items())
        }
        for seed in range(2)
    )
    scales = [{85.0: blind_on(gain, gain, 50 + seed, gain)} for seed, gain in enumerate((2.0, -2.0))]
    case = tools.left_out.Case
    return {
        "a": case(old, ["faint"], ["ood"], "one", scales[0]),
        "b": case(old, ["faint"], ["ood"], "one", scales[0]),
        "c": case(new, ["faint"], ["ood"], "c", scales[1]),
    }


def test_choice_without_a_network_does_not_see_it(tools: SimpleNamespace, cases: dict[str, Any]) -> None:
    before = tools.left_out.left_out(cases)
    other = replace(cases["c"], scores=negated(cases["c"].scores), scales=negated(cases["c"].scales))
    after = tools.left_out.left_out(cases | {"c": other})
    assert before["a"]["chosen on"] == ["c"]
    assert before["c"]["parts"] == after["c"]["parts"] == ["sees-far", "sees-near"]
    assert before["c"]["kinds"] == after["c"]["kinds"] == ["good"]
    assert (before["c"]["lead"], before["c"]["gain"]) == (after["c"]["lead"], after["c"]["gain"])
    assert after["a"]["parts"] != before["a"]["parts"]


def test_what_is_chosen_without_a_network_is_measured_on_all_its_images(
    tools: SimpleNamespace, cases: dict[str, Any]
) -> None:
    found, scores = tools.left_out.left_out(cases)["c"], cases["c"].scores
    assert found["auto"] == "sees-far+sees-near"
    z = {
        name: sum(
            (scores[row][name] - scores[row]["val"].mean()) / scores[row]["val"].std(correction=0)
            for row in ("sees-far", "sees-near")
        )
        for name in ("test", "faint", "ood")
    }
    plain = np.mean([auroc(scores["ebo"]["test"], scores["ebo"][name]) for name in ("faint", "ood")])
    summed = np.mean([auroc(z["test"], z[name]) for name in ("faint", "ood")])
    assert found["difference to ebo"] == pytest.approx(summed - plain, abs=1e-4)


def test_scale_is_used_where_it_gains_on_stand_ins(tools: SimpleNamespace, cases: dict[str, Any]) -> None:
    found = tools.left_out.left_out(cases)
    assert found["a"]["percentile"] == 85.0
    assert found["a"]["scale to ebo"] > 0.1
    assert found["c"]["percentile"] is None
    assert found["c"]["scale to ebo"] == 0.0


def test_a_score_that_is_the_same_for_all_images_wins_nothing(tools: SimpleNamespace, cases: dict[str, Any]) -> None:
    flat = {name: torch.ones(200) for name in cases["a"].scores["ebo"]}
    assert cases["a"].truth([flat]) == 0.5


@pytest.mark.parametrize("side", [32, 33, 224])
def test_every_rival_kind_gives_other_pictures_of_the_same_size(tools: SimpleNamespace, side: int) -> None:
    images = torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    for name, make in tools.kinds.RIVALS.items():
        made = make(images, 7)
        assert made.shape == images.shape, name
        assert made.min() >= 0, name
        assert made.max() <= 1, name
        assert (made - images).abs().mean() > 0.02, name
        assert torch.equal(made, make(images, 7)), name


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
    assert found["ebo"]["cost"]["old"] == 1.0
    assert {"ash-s", "ash-p", "ash-b", "fuse"} <= set(found)
    results = {"command": "x", "networks": list(networks), "timed": {"old": "small"}, "load": "", "methods": found}
    page = tools.methods.page(results)
    (row,) = [line for line in page.splitlines() if line.startswith("| mds |") and "train, labels" in line]
    assert "classes are Gaussian with one covariance" in row
    assert row.endswith(" | Lee et al., NeurIPS 2018 |")


def test_a_method_wins_and_loses_where_the_interval_says_so(tools: SimpleNamespace) -> None:
    gains = {"a": [0.03, 0.01, 0.05], "b": [0.04, -0.01, 0.09], "c": [-0.02, -0.03, -0.01], "d": [-0.05, -0.06, -0.04]}
    measured = {row: {"near": {"auroc": [0.8]}, "far": {"auroc": [0.9]}} for row in ("ebo", "msp")}
    networks = {
        name: {
            "methods": measured
            | {
                "msp": measured["msp"] | {"difference to ebo": gain},
                "ebo": measured["ebo"] | {"difference to ebo": [0.0] * 3},
            }
        }
        for name, gain in gains.items()
    }
    found = tools.methods.table(networks, catalogue(), {"a": {"msp": 2.0, "ebo": 1.0}})
    page = tools.methods.page(
        {"command": "x", "networks": list(networks), "timed": {"a": ""}, "load": "", "methods": found}
    )
    (row,) = [line for line in page.splitlines() if line.startswith("| msp | $")]
    assert row.split(" | ")[1:] == [
        r"$`\max_c p_c`$", "nothing", "OOD images have less confident predictions", "2.0", "+0.0", "+0.0", "+0.0",
        "1 of 4: a +3.0", "2 of 4: d -5.0", "Hendrycks and Gimpel, ICLR 2017 |",
    ]  # fmt: skip


def test_the_table_of_methods_is_that_of_the_classes_and_of_what_was_measured(tools: SimpleNamespace) -> None:
    results = json.loads((tools.study.RESULTS / "methods.json").read_text())
    networks = json.loads((tools.study.RESULTS / "auto.json").read_text())["networks"]
    cost = tools.methods.kept_costs(tools.study.RESULTS)["cost"]
    assert results["methods"] == tools.methods.table(
        networks, catalogue(), cost
    )  # python tools/methods_table.py --keep
    assert (tools.study.RESULTS / "methods.md").read_text() == tools.methods.page(results)
