from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from idness.core.errors import InputError
from idness.core.progress import Progress
from idness.core.types import Activations, Head
from idness.data.activations import in_memory
from idness.detectors import registry
from idness.detectors.detector import Detector
from idness.detectors.registry import build, rows, short
from idness.guard import Guard
from idness.guard.calibrate import choose_detector
from idness.methods import EBO, Scale
from idness.metrics import auroc
from idness.networks.open import Network
from idness.networks.split import SplitModel
from idness.selection.recommend import LEAD, chosen_row, mean_logit, recommend, scale_gains, scale_percentile
from tests.worlds import World, make_world


def beside_the_head(count: int = 200) -> World:
    """A world in which OOD images differ only where the head does not look: logits say nothing, distances all."""
    rng = torch.Generator().manual_seed(0)
    patterns = torch.cat([4 * torch.eye(5), torch.zeros(5, 11)], dim=1)
    head = Head(patterns)

    def acts(number: int, elsewhere: float) -> Activations:
        labels = torch.arange(number) % 5
        features = patterns[labels] + torch.rand(number, 16, generator=rng)
        features[:, 5:] += elsewhere
        return Activations(features, head(features), labels)

    return World(head, acts(3 * count, 0.0), acts(count, 0.0), acts(count, 0.0), acts(count, 3.0))


def separation(detector, world: World) -> float:
    detector.fit(world.head, world.train, val=world.test)
    return auroc(detector.score(world.test), detector.score(world.ood))


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_with_ood_images_no_method_as_it_comes_would_have_been_better(seed: int | None) -> None:
    world = beside_the_head() if seed is None else make_world(seed)
    found = recommend(world.head, world.train, world.test, ood={"some": world.ood})
    assert found.detector.fitted
    assert found.detector.needs_train or seed is not None  # logits alone say nothing beside the head
    assert list(found.aurocs.values()) == sorted(found.aurocs.values(), reverse=True)
    reached = {name: separation(detector, world) for name, detector in {**rows(), "chosen": found.detector}.items()}
    best = max(reached.values())
    assert reached["chosen"] == best or (found.detector.name == "fuse" and reached["chosen"] > best - 0.05)
    assert f"(AUROC {100 * reached['chosen']:.2f} %" in found.why
    assert found.risk


@pytest.mark.parametrize("kind", ["ood", "pseudo"])
def test_no_method_is_compared_on_images_that_it_knows_by_heart(kind: str) -> None:
    world = make_world(classes=60, count=60)
    # More ID images in place of OOD images: whoever tells them apart has learned the others.
    found = recommend(world.head, world.train, world.val, **{kind: {"more of the same": world.test}})
    assert "klm" in found.aurocs
    assert max(found.aurocs.values()) < 0.7


def test_what_cannot_be_tried_is_said() -> None:
    world = make_world()
    bare = Activations(world.train.features, world.train.logits)
    found = recommend(world.head, bare, world.test, ood={"some": world.ood})
    assert {"mds", "rmds"} <= {text.partition(":")[0] for text in found.left_out}
    with pytest.raises(InputError, match="needs ID images to fit methods on"):
        recommend(world.head, world.train[:0], world.test)


def test_without_anything_to_measure_on_it_is_fuse_and_says_so() -> None:
    world = make_world()
    found = recommend(world.head, world.train, world.test)
    assert found.detector.options() == build("fuse").options()
    assert "Nothing was measured" in found.why
    assert (found.risk, found.aurocs) == ("", {})
    assert not {"scaling", "methods"} & {finding.name for finding in found.findings}


def test_pseudo_ood_images_leave_fuse_unless_another_is_far_ahead() -> None:
    world = make_world(width=96, classes=10)
    found = recommend(world.head, world.train, world.test, pseudo={"some": world.ood})
    assert found.detector.name == "fuse"
    assert found.aurocs[short(found.detector)] == pytest.approx(separation(build("fuse"), world), abs=2e-3)
    assert f"{100 * found.aurocs['ebo']:.1f} %" in found.why


@pytest.mark.parametrize(
    ("aurocs", "wanted"),
    [
        ({"ebo": 0.85, "fuse": 0.89, "vim": 0.895}, "fuse"),  # ahead by luck
        ({"ebo": 0.85, "fuse": 0.89, "vim": 0.93}, "vim"),
        ({"ebo": 0.85, "fuse": None, "vim": 0.86, "knn": 0.86}, "vim"),
        ({"ebo": 1.0, "fuse": 1.0}, "fuse"),
        ({"ebo": None}, None),
        ({}, None),
    ],
)
def test_on_validation_data_fuse_gives_way_to_what_is_clearly_above_it(aurocs, wanted) -> None:
    assert chosen_row(aurocs) == wanted


@pytest.mark.parametrize(
    ("logits", "wanted"),
    [
        ({"fuse": 2.0, "ebo": 1.0, "vim": 3.4}, "fuse"),  # ahead, but as far as misleading methods were
        ({"fuse": 2.0, "ebo": 1.0, "vim": 3.6}, "vim"),
        ({"fuse": 2.0, "ebo": 1.95, "vim": 2.2}, "ebo"),  # hardly better than the energy score
        ({"fuse": 2.0, "ebo": 1.9, "vim": 2.2}, "fuse"),
    ],
)
def test_on_pseudo_ood_images_fuse_gives_way_to_a_large_lead_and_to_the_plain_energy(
    monkeypatch: pytest.MonkeyPatch, logits: dict[str, float], wanted: str
) -> None:
    measure = "idness.selection.recommend._mean_logits"
    monkeypatch.setattr(measure, lambda detectors, *_: [logits.get(detector.name, 0.0) for detector in detectors])
    world = make_world()
    assert recommend(world.head, world.train, world.test, pseudo={"some": world.ood}).row == wanted


def test_the_score_on_pseudo_ood_images_is_a_mean_of_logits() -> None:
    ids = torch.arange(100.0)
    half, high = ids.clone(), torch.full((10,), -1.0)
    assert mean_logit(ids, {"half": half}) == pytest.approx(0.0)
    # A perfect kind counts as 99.9 %, ln 999.
    assert mean_logit(ids, {"half": half, "perfect": high}) == pytest.approx(6.9068 / 2, abs=1e-3)
    assert LEAD > 1.01  # of a method that was worse on real images


def test_the_gain_of_scale_is_over_the_energy_score() -> None:
    assert scale_percentile({65.0: 0.05, 85.0: 0.3, 95.0: 0.2}) == 85.0
    assert scale_percentile({65.0: 0.05, 85.0: -0.3}) is None
    world = make_world()
    gains = scale_gains(world.head, world.test, {"some": world.ood})
    ebo, scale = build("ebo"), build("scale", percentile=85)
    pair = [mean_logit(d.fit(world.head).score(world.test), {"some": d.score(world.ood)}) for d in (scale, ebo)]
    assert gains[85.0] == pytest.approx(pair[0] - pair[1])


@dataclass(kw_only=True)
class Draw(Detector):
    """Score a random direction, so that the best of many directions is the best by luck."""

    grid = {"seed": range(60)}
    other = {"seed": 99}

    seed: int = 0

    def rate(self, acts: Activations) -> Tensor:
        directions = torch.randn(acts.features.shape[1], generator=torch.Generator().manual_seed(self.seed))
        return acts.features @ directions


def false_alarms(method: str, images: int, calibrations: int, seed: int = 0) -> tuple[float, float]:
    """Choose and calibrate many times on ID and OOD images that are alike; return the false-alarm rate and its standard error."""
    generator = torch.Generator().manual_seed(seed)
    split = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), example=torch.ones(2, 16, 1, 1))
    network = Network(split, None)

    def drawn(count: int) -> Activations:
        features = 3 * torch.randn(count, 16, generator=generator).abs()
        return Activations(features, split.head(features), split.head(features).argmax(dim=1))

    rates = torch.zeros(calibrations)
    for number in range(calibrations):
        ids = in_memory("ids", drawn(images))
        detector, learn, rows = choose_detector(method, network, ids, None, drawn(images // 2), [], Progress())
        guard = Guard(split, detector)
        if learn is not None:
            guard.fit(learn)
        guard.calibrate(ids.acts[rows], 0.9)
        rates[number] = guard.decide(drawn(300)).is_ood.float().mean()
    return float(rates.mean()), float(rates.std()) / calibrations**0.5


def test_choosing_by_ood_images_keeps_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 random directions the luckiest is chosen: on the calibration images it would flag far more than promised."""
    offered = {"ebo": EBO, "scale": Scale, "draw": Draw}
    monkeypatch.setattr(registry, "available", lambda: offered)
    rate, error = false_alarms("auto", 60, 200)
    assert abs(rate - 0.1) < 4 * error + 0.005, (rate, error)


@pytest.mark.long
@pytest.mark.parametrize(("method", "images"), [("auto", 60), ("auto", 200), ("scale(percentile=auto)", 60)])
def test_choosing_among_all_methods_keeps_the_promise(method: str, images: int) -> None:
    rate, error = false_alarms(method, images, 400)
    assert rate < 0.1 + 3 * error, (rate, error)
