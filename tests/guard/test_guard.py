from __future__ import annotations

import copy
import threading
from contextlib import nullcontext
from pathlib import Path

import colour_world as world
import pytest
import tiny_net
import torch
from colour_world import HOW, known_tensors, ood_tensors
from torch import Tensor, nn

from idness.core.errors import ExportError, IdnessWarning, InputError, NotFittedError, OptionError
from idness.core.types import Activations
from idness.detectors.registry import rows
from idness.guard import Guard
from idness.selection.recommend import recommend


def test_known_pictures_pass_and_ood_ones_do_not(guard: Guard) -> None:
    known, labels = known_tensors(200, first=5_000)
    verdict = guard(known)
    assert float(verdict.is_ood.float().mean()) < 0.12
    assert float((verdict.label == labels).float().mean()) > 0.95
    assert float(guard(ood_tensors(60)).is_ood.float().mean()) > 0.8


def test_class_is_the_plain_networks(guard: Guard, trained: nn.Module) -> None:
    images = torch.cat([known_tensors(20, first=800)[0], ood_tensors(20)])
    with torch.no_grad():
        assert torch.equal(guard(images).label, trained(images).argmax(dim=1))


@pytest.mark.parametrize("name", list(rows(costly=True)))
def test_one_image_and_a_batch_give_the_same_scores(name: str, trained: nn.Module) -> None:
    train, labels = known_tensors(120, first=3_000)
    guard = Guard(trained, name).fit([(train, labels)]).calibrate([known_tensors(100)[0]])
    images = torch.cat([known_tensors(10, first=900)[0], ood_tensors(10)])
    whole = guard(images)
    single = torch.cat([guard(image).score for image in images])
    error = (single - whole.score).abs().max() / max(1.0, float(whole.score.max() - whole.score.min()))
    assert float(error) < 1e-4


def test_rows_that_are_not_finite_are_rejected_and_leave_the_others_alone(guard: Guard) -> None:
    images = known_tensors(6, first=700)[0]
    clean = guard(images)
    images[2, 0, 3, 3] = float("nan")
    images[4] = float("inf")
    verdict = guard(images)
    assert verdict.is_ood[[2, 4]].all()
    assert verdict.label[[2, 4]].tolist() == [-1, -1]
    assert verdict.p_value[2] == pytest.approx(1 / 201)
    assert set(verdict.reasons) == {2, 4}
    assert "not finite" in verdict.reasons[2]
    others = [0, 1, 3, 5]
    torch.testing.assert_close(verdict.score[others], clean.score[others])
    assert verdict.at(0.5)[[2, 4]].all()
    assert guard(torch.full((3, 3, 16, 16), float("nan"))).is_ood.all()


def test_several_thresholds_at_once_nest(guard: Guard) -> None:
    images = torch.cat([known_tensors(80, first=2_000)[0], ood_tensors(20)])
    calibrated = Guard(guard.split, "scale").calibrate([known_tensors(200)[0]], [0.9, 0.95, 0.5])
    verdict = calibrated(images)
    assert list(verdict.levels) == [0.9, 0.95, 0.5]
    assert torch.equal(verdict.is_ood, verdict.levels[0.9])
    assert (verdict.levels[0.95] <= verdict.levels[0.9]).all()
    assert int(verdict.levels[0.5].sum()) > int(verdict.levels[0.9].sum())
    for recall, flags in verdict.levels.items():
        assert torch.equal(verdict.at(recall), flags)


def test_false_alarm_budget_is_one_minus_recall(guard: Guard) -> None:
    data = known_tensors(200)[0]
    other = Guard(guard.split, "scale").calibrate([data], false_alarm=0.05)
    assert other.recalls == (0.95,)
    assert torch.equal(other.threshold(), guard.threshold())
    with pytest.raises(OptionError, match="got both"):
        other.calibrate([data], 0.95, false_alarm=0.05)


def test_per_class_thresholds_keep_the_promise_within_each_class(guard: Guard) -> None:
    made = Guard(guard.split, "msp", class_names=tiny_net.Tiny.class_names).calibrate(
        [known_tensors(400)[0]], 0.9, per_class=True
    )
    assert made.threshold().shape == (4,)
    verdict = made(known_tensors(400, first=6_000)[0])
    for label in range(4):
        assert float(verdict.is_ood[verdict.label == label].float().mean()) < 0.25
    few = known_tensors(24)[0]
    with pytest.raises(InputError, match="predicted as each class"):
        made.calibrate([few], 0.95, per_class=True)


def test_calibration_from_batches_and_from_activations_agree(guard: Guard) -> None:
    images = known_tensors(200)[0]
    batched = Guard(guard.split, "scale").calibrate(images.split(32))
    cached = Guard(guard.split, "scale").calibrate(guard.split.extract([images]))
    torch.testing.assert_close(batched.threshold(), guard.threshold())
    torch.testing.assert_close(cached.threshold(), guard.threshold())


def test_what_is_missing_is_said(trained: nn.Module) -> None:
    images = known_tensors(8)[0]
    with pytest.raises(NotFittedError, match="not calibrated"):
        Guard(trained, "msp")(images)
    with pytest.raises(NotFittedError, match="call fit"):
        Guard(trained, "knn").calibrate([images])
    with pytest.raises(InputError, match="at least 19 in-distribution images, got 8"):
        Guard(trained, "msp").calibrate([images])
    with pytest.raises(InputError, match="got none"):
        Guard(trained, "msp").calibrate([])
    with pytest.raises(InputError, match="4 classes, got 2"):
        Guard(trained, "msp", class_names=["a", "b"])
    with pytest.raises(InputError, match="no preprocessing"):
        Guard(trained, "msp").calibrate([known_tensors(40)[0]]).judge(world.known("red", 0))
    images[3] = float("nan")
    with pytest.raises(InputError, match="image 3"):
        Guard(trained, "msp").calibrate([images])
    with pytest.raises(OptionError, match="recall must be in"):
        Guard(trained, "msp").calibrate([images], 95)


def test_fitting_again_asks_for_calibration_again(guard: Guard) -> None:
    made = Guard(guard.split, "knn(k=3)").fit([known_tensors(40)]).calibrate([known_tensors(40, first=500)[0]])
    made.fit([known_tensors(50)])
    with pytest.raises(NotFittedError):
        made(known_tensors(2)[0])


def test_images_that_a_detector_has_seen_do_not_calibrate_it(guard: Guard, tmp_path: Path) -> None:
    train, fresh = known_tensors(200, first=3_000), known_tensors(200)[0]
    made = Guard(guard.split, "knn(k=3)").fit([train])
    refused = "calibrate: .* of 200 images are among those that knn learned from.*; calibrate on other images"
    with pytest.raises(InputError, match=refused):
        made.calibrate(train[0].split(32))  # as other batches, which are rounded differently
    made.calibrate([torch.cat([fresh[:-2], train[0][:2]])])  # 1 %: duplicates between data sets
    with pytest.raises(InputError, match="3 of 200 images"):
        made.calibrate([torch.cat([fresh[:-3], train[0][:3]])])
    with pytest.raises(InputError, match=refused):
        Guard.load(made.save(tmp_path), guard.split).calibrate([train[0]])
    made.fit([(fresh, train[1])]).calibrate([train[0]])
    Guard(guard.split, "scale").fit([train]).calibrate([train[0]])  # learns nothing


def test_images_that_a_detector_was_chosen_on_do_not_calibrate_it(guard: Guard) -> None:
    train, ids, ood = (
        guard.split.extract([part]) for part in (known_tensors(120), known_tensors(90, 400), ood_tensors(60))
    )
    found = recommend(guard.split.head, train, ids, ood={"odd": ood}).detector
    made = Guard(guard.split, found).fit(train)
    with pytest.raises(InputError, match="90 of 90 images are among those that .* was chosen on"):
        made.calibrate(ids)
    made.calibrate([known_tensors(90, 900)[0]])


def test_network_is_left_as_it_was(trained: nn.Module) -> None:
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    guard = Guard(trained, "scale").calibrate([known_tensors(40)[0]])
    guard.train()
    guard(known_tensors(8)[0])
    assert guard.training
    assert trained.body[1].training
    trained.eval()
    assert all(torch.equal(before[name], value) for name, value in trained.state_dict().items())
    assert not trained.fc._forward_hooks


def test_half_precision_networks_keep_float32_scores(guard: Guard) -> None:
    import copy

    low = copy.deepcopy(guard).to(torch.bfloat16)
    verdict = low(known_tensors(16, first=300)[0])
    assert verdict.score.dtype == torch.float32
    assert low.threshold().dtype == torch.float32
    assert (verdict.label == guard(known_tensors(16, first=300)[0]).label).all()


def test_pictures_are_judged_from_paths_bytes_and_images(guard: Guard, tmp_path) -> None:
    picture = world.known("blue", 77)
    path = tmp_path / "blue.png"
    picture.save(path)
    verdict = guard.judge(path, path.read_bytes(), picture)
    assert verdict.score.unique().numel() == 1
    assert verdict.name(0) == "blue"
    assert torch.equal(guard(HOW(picture)).label, verdict.label[:1])


def test_verdict_shows_itself_safely(guard: Guard) -> None:
    made = Guard(guard.split, "scale", class_names=["<b>", "g", "b", "y"]).calibrate([known_tensors(200)[0]])
    verdict = made(known_tensors(60)[0])
    html = verdict._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>\n" not in html
    assert "and 10 more" in html
    assert len(verdict.records()) == 60 == len(list(verdict))
    assert verdict[-1].score == verdict.score[-1]
    assert "60 images" in repr(verdict)
    assert "<table>" in made._repr_html_()
    assert "at most 5 % of" in made.promise()
    assert "scale" in repr(made)


def test_an_image_at_the_threshold_passes(guard: Guard) -> None:
    acts = guard.split.extract(
        [known_tensors(200)[0]]
    )  # those it is calibrated on: the threshold is a score of one of them
    verdict = guard.decide(acts)
    at = verdict.score == guard.threshold()
    assert at.any()
    assert not verdict.is_ood[at].any()
    assert verdict.is_ood.tolist() == (verdict.score < guard.threshold()).tolist()


def test_decision_from_cached_activations(guard: Guard) -> None:
    images = ood_tensors(12)
    acts = guard.split.split(images)
    assert torch.equal(guard.decide(Activations(acts.features, acts.logits)).is_ood, guard(images).is_ood)


def test_a_guard_for_images_needs_no_normalisation_of_ones_own(
    net_spec: str, weights: Path, id_folder: Path, ood_folder: Path
) -> None:
    with pytest.warns(IdnessWarning, match="percentile 85 harms this network"):  # what the command line prints
        guard = Guard.for_images(net_spec, id_folder, 0.9, method="scale", weights=weights)
    assert guard.recalls == (0.9,)
    assert guard.class_names == ("red", "green", "blue", "yellow")
    inside, outside = (guard.judge(*sorted(folder.rglob("*.png"))[:30]) for folder in (id_folder, ood_folder))
    assert int(inside.is_ood.sum()) < 10 < int(outside.is_ood.sum())


def test_any_recall_has_a_threshold(guard: Guard) -> None:
    again = Guard(guard.split, "scale").calibrate([known_tensors(200)[0]], 0.5)
    assert torch.equal(guard.threshold(0.5), again.threshold())
    with pytest.raises(InputError, match="needs at least 999 in-distribution images, got 200"):
        guard.threshold(0.999)
    with pytest.raises(OptionError, match="recall must be in"):
        guard.threshold(95)


def test_recalls_may_change_while_others_decide(guard: Guard) -> None:
    made = Guard(guard.split, "scale").calibrate([known_tensors(200)[0]], 0.95)
    acts, stop = made.split.split(known_tensors(4)[0]), threading.Event()

    def change() -> None:
        while not stop.is_set():
            made.set_recall(0.95)
            made.set_recall(0.5, 0.9)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        verdicts = [made.decide(acts) for _ in range(300)]
        thresholds = [made.threshold() for _ in range(300)]
    finally:
        stop.set()
        changing.join()
    assert {tuple(verdict.levels) for verdict in verdicts} <= {(0.95,), (0.5, 0.9)}
    assert {float(value) for value in thresholds} <= {float(made.threshold(recall)) for recall in (0.95, 0.5)}


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["scale", "vim", "weiper"])
def test_the_default_dtype_changes_nothing(
    precision: torch.dtype, method: str, trained: nn.Module, tmp_path: Path
) -> None:
    model = copy.deepcopy(trained).to(precision)

    def saved(folder: Path) -> list[Tensor]:
        made = Guard(model, method, preprocessing=HOW).fit([known_tensors(120, first=3_000)])
        made.calibrate([known_tensors(120)[0]]).save(folder)
        loaded = Guard.load(folder, model)
        if method == "scale":
            with pytest.raises(ExportError, match="float64") if precision == torch.float64 else nullcontext():
                made.to_onnx(folder / "guard.onnx")
        return [known.judge(world.known("red", 5)).score for known in (made, loaded)]

    expected = saved(tmp_path / "float32")
    torch.set_default_dtype(torch.float64)
    try:
        found = saved(tmp_path / "float64")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.cat(expected), torch.cat(found))
    assert found[0].dtype == torch.float32


def test_class_names_may_be_numbers(trained: nn.Module, tmp_path: Path) -> None:
    numbers = range(10, 10 + len(tiny_net.Tiny.class_names))
    guard = Guard(trained, "scale", preprocessing=HOW, class_names=numbers).calibrate([known_tensors(120)[0]])
    verdict = Guard.load(guard.save(tmp_path / "guard"), trained).judge(world.known("red", 5))
    assert verdict.name(0) == str(10 + int(verdict.label))
    assert f"<td>{verdict.name(0)}</td>" in verdict._repr_html_()
