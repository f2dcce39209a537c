"""`idness fit`: a small file in place of a training set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from colour_world import write_folder
from safetensors.torch import load_file, save_file

from idness.activations.extract import extract
from idness.core.errors import DataError, InputError, OptionError, StoreError
from idness.data import ActivationsSet
from idness.data.activations import FITTED
from idness.guard import Guard
from idness.guard.calibrate import prepare_guard
from idness.selection import fitting
from idness.selection.fitting import fit_file, statistics_for
from tests.cli.running import idness

METHODS = ["rmds", "knn(k=5)", "react", "dice"]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("taught") / "colours", 60, first=500)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def fitted(net_spec: str, weights: Path, taught: Path, cache: Path) -> Path:
    file = cache / "train.safetensors"
    fit_file(net_spec, [taught], file, weights=weights, cache=cache, engine="eager")
    return file


@pytest.mark.parametrize("method", METHODS)
def test_a_guard_is_the_same_from_the_file_as_from_the_images(
    method: str, net_spec: str, weights: Path, taught: Path, fitted: Path, id_folder: Path
) -> None:
    guards: list[Guard] = [
        prepare_guard(net_spec, id_folder, weights=weights, method=method, train=train, engine="eager").guard
        for train in (taught, fitted)
    ]
    one, other = (guard.detector.score(_acts(fitted, guard)) for guard in guards)
    # Percentiles are exact to 2^-12 of themselves.
    close = 1e-3 if method == "react" else 1e-5
    assert (one - other).abs().max() <= close * one.abs().max()


def _acts(file: Path, guard: Guard) -> object:
    data = ActivationsSet(file)
    data.head = guard.split.head
    return next(iter(data.batches(100)))


def test_the_command_says_what_it_wrote_and_how_to_use_it(
    net_spec: str, weights: Path, taught: Path, id_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "train.safetensors"
    done = idness(
        "fit", net_spec, taught, "--weights", weights, "-o", file, "--methods", "rmds,knn", "--keep", 50,
        "--cache", tmp_path / "cache",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "images  240" in done.stdout
    assert f"--train {file}" in done.stdout
    tensors = load_file(file)
    assert tensors["features"].shape[0] == 52  # 13 of each of four classes
    assert {name.partition(".")[0] for name in tensors if "." in name} == {"classes"}
    made = idness(
        "calibrate", net_spec, "--weights", weights, "--data", id_folder, "--train", file, "--method", "rmds",
        "-o", tmp_path / "guard",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "learns from 240 images (52 kept) of train.safetensors" in " ".join(made.stderr.split())


def test_files_of_parts_make_the_file_of_the_whole(
    net_spec: str, weights: Path, taught: Path, fitted: Path, cache: Path, tmp_path: Path
) -> None:
    parts = []
    for number in range(2):
        folder = tmp_path / f"part{number}"
        for file in sorted(taught.rglob("*.png"))[number::2]:
            place = folder / file.relative_to(taught)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
        parts.append(tmp_path / f"part{number}.safetensors")
        fit_file(net_spec, [folder], parts[-1], weights=weights, cache=cache, engine="eager")
    joined = tmp_path / "joined.safetensors"
    about = fit_file(net_spec, parts, joined, weights=weights)
    assert about.images == 240
    one, other = load_file(fitted), load_file(joined)
    assert set(one) == set(other)
    for name in one:
        assert torch.allclose(one[name].double(), other[name].double(), rtol=1e-6, atol=1e-6), name


def test_the_same_run_gives_the_same_bytes(
    net_spec: str, weights: Path, taught: Path, fitted: Path, cache: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.safetensors"
    fit_file(net_spec, [taught], again, weights=weights, cache=cache, engine="eager")
    assert again.read_bytes() == fitted.read_bytes()


def test_a_benchmark_takes_the_file_in_place_of_training_images(
    net_spec: str, weights: Path, taught: Path, fitted: Path, id_folder: Path, ood_folder: Path, tmp_path: Path
) -> None:
    reached = []
    for number, train in enumerate((taught, fitted)):
        text = f"[id]\ntrain = '{train}'\ntest = '{id_folder}'\n[far]\nodd = '{ood_folder}'\n"
        (tmp_path / f"b{number}.toml").write_text(text)
        done = idness(
            "bench", tmp_path / f"b{number}.toml", "--model", net_spec, "--weights", weights, "--methods", "rmds,knn(k=5),dice",
            "--out", tmp_path / f"out{number}", "--cache", tmp_path / "cache", "--engine", "eager",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        results = json.loads((tmp_path / f"out{number}" / "results.json").read_text())
        reached.append({row: method["groups"]["far"]["auroc"] for row, method in results["methods"].items()})
    assert reached[0] == pytest.approx(reached[1], abs=1e-6)
    assert results["sets"]["id_train"]["source"] == "train.safetensors (of 240 images)"


def test_activations_and_a_head_will_do(trained: torch.nn.Module, fitted: Path, tmp_path: Path) -> None:
    linear = [module for module in trained.modules() if isinstance(module, torch.nn.Linear)][-1]
    save_file({"weight": linear.weight.detach(), "bias": linear.bias.detach()}, tmp_path / "head.safetensors")
    kept = load_file(fitted)
    save_file({name: kept[name] for name in ("features", "labels")}, tmp_path / "acts.safetensors")
    about = fit_file(str(tmp_path / "head.safetensors"), [tmp_path / "acts.safetensors"], tmp_path / "out.safetensors")
    assert about.images == 240
    found = load_file(tmp_path / "out.safetensors")
    assert torch.allclose(found["classes.means"], kept["classes.means"])


@pytest.fixture
def other_network(tmp_path: Path) -> Path:
    from tiny_net import Tiny

    torch.manual_seed(5)
    file = tmp_path / "other.safetensors"
    save_file({name: value.contiguous() for name, value in Tiny().state_dict().items()}, file)
    return file


def test_the_file_of_another_network_is_refused(
    net_spec: str, fitted: Path, id_folder: Path, other_network: Path
) -> None:
    with pytest.raises(DataError, match="was made by idness fit with another network"):
        prepare_guard(
            net_spec, id_folder, weights=other_network, method="rmds", train=fitted, engine="eager", any_accuracy=True
        )


def test_calibrating_on_images_that_were_fitted_is_refused(
    net_spec: str, weights: Path, taught: Path, fitted: Path
) -> None:
    with pytest.raises(InputError, match="must have no image in common, got 240"):
        prepare_guard(net_spec, taught, weights=weights, method="knn(k=1)", train=fitted, engine="eager")


def test_a_method_that_changes_images_needs_images(net_spec: str, weights: Path, fitted: Path, id_folder: Path) -> None:
    with pytest.raises(InputError, match="this method changes the images; give the images"):
        prepare_guard(net_spec, id_folder, weights=weights, method="odin", train=fitted, engine="eager")
    with pytest.raises(OptionError, match="must look at an image once, got odin"):
        statistics_for(["odin"])


def test_damage_is_told(fitted: Path, tmp_path: Path) -> None:
    content = bytearray(fitted.read_bytes())
    content[-3] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(StoreError, match="its tensors are not those that were saved"):
        ActivationsSet(tmp_path / "bad.safetensors").whole()
    header = fitted.read_bytes().replace(b'images\\": 240', b'images\\": 241')
    (tmp_path / "forged.safetensors").write_bytes(header)
    with pytest.raises(StoreError, match="its checksum is not that of its content"):
        ActivationsSet(tmp_path / "forged.safetensors")
    assert FITTED.version == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-o", "train.npz"], "--out must end in .safetensors, got 'train.npz'"),
        (["--keep", "0"], "--keep"),
        (["--methods", "nonsense"], "nonsense"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], told: str, net_spec: str, weights: Path, taught: Path, tmp_path: Path
) -> None:
    done = idness("fit", net_spec, taught, "--weights", weights, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert not list(tmp_path.glob("*.safetensors"))


def test_what_extract_has_run_is_not_run_again(
    net_spec: str, weights: Path, taught: Path, fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    assert idness("extract", net_spec, taught, "--weights", weights, "-o", store, "--engine", "eager").returncode == 0
    ran: list[int] = []

    def watched(*given: Any, **named: Any) -> Any:
        done = extract(*given, **named)
        ran.append(done.ran)
        return done

    monkeypatch.setattr(fitting, "extract", watched)
    fit_file(net_spec, [taught], tmp_path / "out.safetensors", weights=weights, cache=store, engine="eager")
    assert ran == [0]
    assert (tmp_path / "out.safetensors").read_bytes() == fitted.read_bytes()
