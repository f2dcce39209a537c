"""What every method must do, ours and third parties' alike; a new method is tested here unasked."""

from __future__ import annotations

import dataclasses
import math
import warnings

import pytest
import torch
from safetensors.torch import load, save

from idness.core.errors import IdnessWarning, InputError, NotFittedError, OptionError
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector, Enhancer, InputEdit, fit_many, score_many
from idness.detectors.readouts import READOUTS
from idness.detectors.registry import available, build, parse, rows
from idness.metrics import auroc
from tests.worlds import make_world, seen_by

ROWS = sorted(rows(costly=True))


@pytest.fixture(scope="module")
def world():
    return make_world()


def fitted(name: str, world, **options) -> Detector:
    return fit(build(name, **options), world)


def fit(detector: Detector, world) -> Detector:
    seen = world.seen_by(detector)
    return detector.fit(seen.head, seen.train, val=seen.val)


def score(detector: Detector, acts: Activations) -> torch.Tensor:
    return detector.score(seen_by(detector, acts, detector.head_))


@pytest.mark.parametrize("name", ROWS)
def test_each_image_has_one_finite_score_and_id_images_score_above_ood_images(name, world):
    detector = build(name)
    assert fit(detector, world) is detector
    scores = score(detector, world.test)
    assert (scores.shape, scores.dtype) == ((len(world.test),), torch.float32)
    assert torch.isfinite(scores).all()
    assert auroc(scores, score(detector, world.ood)) > 0.75


@pytest.mark.parametrize("name", ROWS)
def test_a_score_does_not_depend_on_its_batch(name, world):
    detector = fitted(name, world)
    whole = score(detector, world.test)
    single = torch.cat([score(detector, world.test[i : i + 1]) for i in range(20)])
    torch.testing.assert_close(single, whole[:20], rtol=1e-4, atol=1e-4)
    order = torch.randperm(len(world.test), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(score(detector, world.test[order]), whole[order], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ROWS)
def test_arguments_are_left_as_they_were(name, world):
    parts = [world.head.weight, world.head.bias]
    parts += [t for acts in (world.train, world.val, world.test) for t in (acts.features, acts.logits)]
    before = [part.clone() for part in parts]
    score(fitted(name, world), world.test)
    for part, copy in zip(parts, before, strict=True):
        assert torch.equal(part, copy)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("kind", ["zero", "huge", "tiny", "negative", "one_hot"])
def test_odd_features_have_finite_scores(name, kind, world):
    features = {
        "zero": torch.zeros(3, world.head.width),
        "huge": torch.full((3, world.head.width), 1e30),
        "tiny": torch.full((3, world.head.width), 1e-40),
        "negative": -torch.rand(3, world.head.width),
        "one_hot": torch.eye(world.head.width)[:3],
    }[kind]
    detector = fitted(name, world)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)
        scores = score(detector, Activations(features, world.head(features)))
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", ROWS)
def test_rebuilt_by_its_options_loaded_from_its_state_or_fitted_twice_it_scores_the_same(name, world):
    detector = fitted(name, world)
    again = build(detector.config()["method"], **detector.config()["options"])
    assert again.options() == detector.options() == parse(detector.label()).options()
    state = {key: value.contiguous() for key, value in detector.state().items()}
    loaded = build(name).load_state(world.head, load(save(state)))
    twice = fit(fit(build(name), dataclasses.replace(world, train=world.val, val=world.train)), world)
    for other in (fit(again, world), loaded, twice):
        assert torch.equal(score(other, world.test), score(detector, world.test))


OPTIONS = [
    (name, field.name)
    for name, cls in sorted(available().items())
    for field in dataclasses.fields(cls)
    if not cls.of_run
]


def others(method: type[Detector], option: str) -> list[object]:
    """List the other values of an option that its class names."""
    default = method().options()[option]
    named = [method.other[option]] if option in method.other else []
    named += [row[option] for row in method.rows.values() if option in row]
    named += READOUTS if option == "readout" else []
    found = [value for value in [*named, *method.grid.get(option, ())] if value != default]
    assert found, f"{method.__name__}: name another allowed value of {option!r} in grid or other"
    return found


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_changes_the_scores(name, option):
    world = make_world(classes=20)  # where GEN's largest 10 probabilities are not all of them
    plain = score(fitted(name, world), world.test)
    changed = (score(fitted(name, world, **{option: value}), world.test) for value in others(available()[name], option))
    assert any(not torch.allclose(plain, scores, rtol=1e-3) for scores in changed)


@pytest.mark.parametrize("name", [name for name in ROWS if build(name).grid])
def test_every_value_of_the_search_grid_is_allowed_and_counts(name):
    detector = build(name)
    assert len(detector.variants()) == math.prod(len(values) for values in detector.grid.values())
    # As many images and classes as any option counts; methods that learn have fewer classes, to save time.
    world = make_world(count=1200, classes=20 if detector.needs_train else 1100)
    for option, values in detector.grid.items():
        variants = detector.variants({option: values})
        seen = world.seen_by(detector)
        fit_many(variants, seen.head, seen.train, val=seen.val)
        distinct = {tuple(scores[:50].tolist()) for scores in score_many(variants, seen.test)}
        assert len(distinct) == len(values), option


@pytest.mark.parametrize("name", ROWS)
def test_many_at_once_equal_one_by_one(name):
    world = make_world(count=1200).seen_by(build(name))
    variants = build(name).variants()[:8]
    fit_many(variants, world.head, world.train, val=world.val)
    for variant, score in zip(variants, score_many(variants, world.test), strict=True):
        alone = dataclasses.replace(variant).fit(world.head, world.train, val=world.val)
        torch.testing.assert_close(alone.score(world.test), score, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(alone.rate(world.test), score, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ebo", "mds", "odin"])
def test_unsuitable_activations_are_refused(name, world):
    with pytest.raises(NotFittedError, match="is not fitted; call fit"):
        build(name).score(world.seen_by(build(name)).test)
    with pytest.raises(NotFittedError):
        build(name).state()
    detector, other, fewer = fitted(name, world), make_world(width=32), make_world(classes=3)
    with pytest.raises(InputError, match="64 features per image"):
        detector.score(other.seen_by(detector).test)
    with pytest.raises(InputError, match="64 features per image"):
        build(name).fit(world.head, other.train)
    with pytest.raises(InputError, match="5 logits per image"):
        detector.score(fewer.seen_by(detector).test)
    with pytest.raises(InputError, match="at least one image"):
        score(detector, world.test[:0])
    with pytest.raises(InputError, match="at least one image"):
        build(name).fit(world.head, world.train[:0])
    for bad in (float("nan"), float("inf"), -float("inf")):
        features = world.test.features.clone()
        features[7, 3] = bad
        with pytest.raises(InputError, match="1 of 200 images .first at row 7"):
            score(detector, Activations(features, world.test.logits))


@pytest.mark.parametrize(("name", "option"), [("knn", "k"), ("nnguide", "k"), ("actsub", "k"), ("ssd", "clusters")])
def test_more_neighbours_or_clusters_than_training_images_are_refused(name, option, world):
    few = world.train[:9]
    assert build(name, **{option: 9}).fit(world.head, few).score(world.test).isfinite().all()
    with pytest.raises(InputError, match=rf"{option} must be at most the number of training images \(9\), got 10"):
        build(name, **{option: 10}).fit(world.head, few)


@pytest.mark.parametrize("name", [name for name in ROWS if build(name).needs_train])
@pytest.mark.parametrize("kind", ["one image", "zero", "equal", "constant features", "missing classes"])
def test_degenerate_training_images_give_finite_scores_or_are_refused(name, kind, world):
    features = world.train.features.clone()
    if kind == "zero":
        features[:] = 0
    elif kind == "equal":
        features[:] = features[0].clone()
    elif kind == "constant features":
        features[:, :10] = 0.25
    train = Activations(features, world.head(features), world.train.labels)
    train = train[:1] if kind == "one image" else train[train.labels < 3] if kind == "missing classes" else train
    options = {key: 1 for key in ("k", "clusters") if key in build(name).options()}
    detector = build(name, **(options | ({"parts": "ebo+vra+react"} if name == "fuse" else {})))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)
        if kind == "one image" and name in ("mds", "rmds", "mdspp", "rmdspp"):
            with pytest.raises(InputError, match="at least two training images"):
                detector.fit(world.head, train)
            return
        detector.fit(world.head, seen_by(detector, train, world.head))
        assert score(detector, world.test).isfinite().all()


@pytest.mark.parametrize("name", [name for name in ROWS if build(name).input_edit is not None])
def test_methods_that_look_twice_say_so_and_what_is_missing_and_only_named_options_change_images(name, world):
    detector = fitted(name, world)
    assert isinstance(detector, InputEdit)
    assert (detector.forward_passes, detector.backward_passes) == (2, 1)
    assert name not in rows()  # a comparison runs them only where they are named
    assert not set(detector.grid) & set(detector.changed_by)  # each such value would cost another pass
    message = r"activations must include those of the edited images, got none; score images with a Guard"
    with pytest.raises(InputError, match=f"{type(detector).__name__}: {message}"):
        detector.score(world.test)
    if detector.needs_train:
        with pytest.raises(InputError, match="train must include those of the edited images"):
            build(name).fit(world.head, world.train)
    for outer, option in (("fuse", "parts"), ("chain", "steps")):
        with pytest.raises(OptionError, match="a part must need one pass|a step must edit features or head"):
            build(outer, **{option: name})

    def changed(editor):
        return editor.perturb(lambda images: (images, world.head(images)), world.test.features)

    for option in detector.options():
        other = build(name, **{option: others(type(detector), option)[0]})
        same = torch.equal(changed(other), changed(detector))
        assert same == (option not in detector.changed_by), option
        assert (other.edit_key() == detector.edit_key()) == same


@pytest.mark.parametrize("name", [name for name in ROWS if build(name).needs_train])
def test_missing_training_images_and_missing_and_wrong_labels_are_told(name, world):
    with pytest.raises(InputError, match="needs training activations"):
        build(name).fit(world.head)
    if not build(name).needs_labels:
        return
    bare = Activations(world.train.features, world.train.logits)
    with pytest.raises(InputError, match="must have labels"):
        build(name).fit(world.head, bare)
    outside = Activations(world.train.features, world.train.logits, torch.full((600,), 5))
    with pytest.raises(InputError, match=r"labels must be in \[0, 4\], got 5 to 5"):
        build(name).fit(world.head, outside)


@pytest.mark.parametrize("name", [name for name in ROWS if build(name).uses_head])
def test_the_head_of_another_network_is_refused(name, world):
    other = Head(world.head.weight.flip(0), world.head.bias)
    with pytest.raises(InputError, match="another network"):
        build(name).fit(other, world.train)
    detector = fitted(name, world)
    with pytest.raises(InputError, match="another network"):
        score(detector, Activations(world.test.features, other(world.test.features)))


@pytest.mark.parametrize("name", [name for name in ROWS if build(name).assumes_nonnegative])
def test_negative_features_are_warned_about(name, world):
    signed = make_world(signed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)
        detector = fitted(name, signed)
    with pytest.warns(IdnessWarning, match=r"requires non-negative features.* use gen, rmds, knn"):
        score(detector, signed.test)


@pytest.mark.parametrize("name", [name for name in ROWS if isinstance(build(name), Enhancer)])
def test_the_head_is_read_when_scoring_not_copied_from_the_features(name, world):
    detector = fitted(name, world)
    assert isinstance(detector, Enhancer)
    slow = detector.edit(world.head)(detector.shape(world.test.features))
    torch.testing.assert_close(detector.shaped_logits(world.test), slow, rtol=1e-4, atol=1e-4)


def test_unknown_names_and_options_are_told():
    with pytest.raises(KeyError, match="unknown method 'scal'; did you mean 'scale'?"):
        build("scal")
    with pytest.raises(OptionError, match="Scale: unknown option 'percent'; it takes readout, percentile"):
        build("scale", percent=85)
    with pytest.raises(OptionError, match="MSP: unknown option 'k'; it takes none"):
        build("msp", k=1)
    with pytest.raises(OptionError, match="expected name or name"):
        parse("scale(percentile=95")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("scale", {"percentile": 300}, r"Scale: percentile must be in \[0, 100\), got 300"),
        ("scale", {"percentile": 0.85}, "in percent.*got 0.85.*did you mean 85"),
        ("scale", {"percentile": "85"}, "must be a number, got '85'"),
        ("scale", {"percentile": float("nan")}, "must be a number"),
        ("dice", {"percentile": 100}, "must be in"),
        ("ash", {"variant": "x"}, "variant must be one of s, p, b; got 'x'"),
        ("knn", {"k": 0}, "whole number of at least 1, got 0"),
        ("knn", {"k": 2.5}, "whole number"),
        ("gen", {"m": True}, "must be a number"),
        ("ebo", {"temperature": float("inf")}, "must be above 0"),
        ("she", {"metric": "dot"}, "metric must be one of inner_product, cosine, euclidean; got 'dot'"),
        ("vra", {"low": 60.0, "high": 60.0}, r"VRA: low must be below high \(60\), got 60"),
        ("adascale", {"low": 90.0}, r"low must be at most high \(70\), got 90"),
        ("mds", {"shrinkage": 1}, r"MDS: shrinkage must be in \[0, 1\), got 1"),
    ],
)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(OptionError, match=message):
        build(name, **options)
