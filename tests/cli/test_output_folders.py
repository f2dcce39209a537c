"""No command deletes or overwrites a file that idness did not write."""

import shutil
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from idness.guard.onnx import check_target
from tests.cli.running import idness
from tests.pictures import world

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
OURS = [
    ".idness.json", "guard.json", "results.json", "results.csv", "results.md", "results.tex", "report.html",
    "scores.safetensors", "thumbs.safetensors", "log.csv", "checkpoint.json", "weights.safetensors", "images.safetensors",
    "method.safetensors", "compare.md", "compare.html", "analysis.json",
    "README.md", "reproduce.json", "reproduce.md", "reproduced.key", ".x.part",
]  # fmt: skip
LIKE = [f"{kind}-{'0' * 16}.safetensors" for kind in ("weights", "tensors")]
LIKE += ["checkpoint-00000000.safetensors", f"part-00000000-{'0' * 16}-{'0' * 16}.parquet"]
FOREIGN = st.dictionaries(st.sampled_from(OURS + LIKE), st.binary(min_size=1, max_size=40), max_size=6)
SLOW = pytest.param("analyze", marks=pytest.mark.long)
FORCIBLE = ["calibrate", "train", "bench", "compare", "reproduce", SLOW]


@pytest.fixture(scope="module")
def words(tmp_path_factory, net_spec, weights, id_folder, ood_folder, folder):
    """The words of each command up to its output folder."""
    place = world(tmp_path_factory.mktemp("world"))
    net, trained = f"{place.parent}/net.py:make", ["--weights", place.parent / "weights.safetensors"]
    calibrate = ["calibrate", net_spec, "--weights", weights, "--data", id_folder, "--method", "ebo", "-o"]
    guard = tmp_path_factory.mktemp("guards") / "guard"
    assert idness(*calibrate, guard).returncode == 0
    return {
        "calibrate": calibrate,
        "score": ["score", guard, ood_folder, "--model", net_spec, "--weights", weights, "--resume", "-o"],
        "extract": ["extract", net_spec, ood_folder, "--weights", weights, "--resume", "-o"],
        "train": ["train", "--data", id_folder, "--model", "tiny_resnet", "--epochs", 1, "--method", "plain", "--out"],
        "bench": ["bench", place, "--model", net, *trained, "--methods", "ebo", "--cache", place.parent / "c", "--out"],
        "compare": ["compare", folder, folder, "--out"],
        "analyze": ["analyze", place, "--model", net, *trained, "--limit", 20, "--out"],
        "reproduce": ["reproduce", "cifar10", "--data", ood_folder, "--out"],
    }


@pytest.fixture(scope="module")
def written(words, tmp_path_factory):
    """Return an output folder that a command wrote."""

    @cache
    def write(name):
        out = tmp_path_factory.mktemp("written") / "out"
        assert idness(*words[name], out).returncode == 0
        return out

    return write


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(done):
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.returncode == 2


@pytest.mark.parametrize("ours", [False, True], ids=["other", "ours"])
@pytest.mark.parametrize("command", ["score", "extract", *FORCIBLE])
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(foreign=FOREIGN)
def test_files_of_others_are_unchanged(command, ours, words, written, tmp_path_factory, foreign):
    out = tmp_path_factory.mktemp("parent") / "out"
    if ours:
        shutil.copytree(written(command), out)
    else:
        out.mkdir()
    there = dict.fromkeys(LIKE, b"mine") | {name: text for name, text in foreign.items() if not (out / name).exists()}
    for name, content in there.items():
        (out / name).write_bytes(content)
    done = idness(*words[command], out)
    assert {name: (out / name).read_bytes() for name in there} == there
    assert refused(done) if not ours else done.returncode == 0 or refused(done)
    assert ours or contents(out) == there


@pytest.mark.parametrize("command", FORCIBLE)
def test_force_overwrites_files_of_the_same_name_and_no_others(command, words, written, tmp_path):
    plain = [path.name for path in written(command).iterdir() if path.suffix not in ("", ".safetensors", ".json")]
    for name in (*plain, *LIKE):
        (tmp_path / name).write_bytes(b"mine")
    assert refused(idness(*words[command], tmp_path))
    assert idness(*words[command], tmp_path, "--force").returncode == 0
    assert {name for name, content in contents(tmp_path).items() if content == b"mine"} == set(LIKE)


def test_an_export_replaces_only_an_earlier_export(words, net_spec, weights, tmp_path):
    guard, network = words["score"][1], ("--model", net_spec, "--weights", weights)
    before, out = contents(guard), tmp_path / "guard.onnx"
    assert "must end in .onnx" in idness("export", guard, "-o", guard / "guard.json", *network).stderr
    assert contents(guard) == before
    out.write_bytes(b"mine")
    assert refused(idness("export", guard, "-o", out, *network))
    assert out.read_bytes() == b"mine"
    assert idness("export", guard, "-o", out, *network, "--force").returncode == 0
    check_target(out)


def test_resuming_with_another_guard_is_refused(words, written, guard, tmp_path):
    before, other = contents(written("score")), guard.save(tmp_path / "other")
    done = idness("score", other, *words["score"][2:], written("score"))
    assert refused(done)
    assert "another guard" in done.stderr
    assert contents(written("score")) == before


@pytest.mark.parametrize(
    ("command", "sample"), [("calibrate", "guard-v1"), ("bench", "results-v1"), ("extract", "store-v1")]
)
def test_folders_of_the_first_release_can_be_written_again(command, sample, words, tmp_path):
    done = idness(*words[command], shutil.copytree(SAMPLES / sample, tmp_path / "out"))
    assert done.returncode == 0, done.stderr
