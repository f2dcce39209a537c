"""What the golden suite measures, through the public API and the command line only."""

from __future__ import annotations

import csv
import hashlib
import inspect
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import idness as api
from idness import metrics, training
from tests.cli.running import idness
from tests.golden.values import normalised
from tests.report.test_html import outline

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
NETWORK = f"{SAMPLES / 'tiny_net.py'}:make"
WEIGHTS = next((SAMPLES / "guard-v1").glob("weights-*.safetensors"))
EAGER = ("--engine", "eager", "-q")
LOGGED = ("epoch", "step", "lr", "loss", "accuracy", "val_accuracy")
METRICS = ("auroc", "aupr_in", "aupr_out", "fpr_at_id_recall", "fpr_at_ood_recall")
Documents = dict[str, Any]


def run(*words: object, cwd: Path) -> str:
    """Run a command that must succeed, and return its output."""
    done = idness(*words, cwd=cwd)
    assert done.returncode == 0, f"idness {' '.join(map(str, words))}: {done.stderr}"
    return done.stdout


def images(root: Path) -> Path:
    """Write the images of the small network: known colours in four splits, OOD images, and a file that is no image."""
    from colour_world import write_folder, write_ood  # of tests/samples

    for first, (name, count) in enumerate({"train": 40, "val": 40, "test": 25, "new": 3}.items()):
        write_folder(root / name, count, 1000 * first)
    for first, (name, count) in enumerate({"stripes": 30, "noise": 60, "odd": 8}.items()):
        write_ood(root / name, count, 1000 * first)
    (root / "odd" / "broken.png").write_text("no image")
    return root


def bench(folder: Path) -> Documents:
    """Run the embedded benchmark with every method of one pass."""
    words = ("bench", "cifar6", "--out", "out", "--batch-size", 128, *EAGER)
    results = json.loads(run(*words, "--json", cwd=folder))
    assert results == json.loads((folder / "out" / "results.json").read_text())
    report = api.Report.load(folder / "out")
    scores = {
        row: {
            name: normalised(report.scores.of(row, name).tolist()[::100])
            for name in results["sets"]
            if name != "id_train"
        }
        for row in results["methods"]
    }
    documents = {"scores": scores, "intervals": intervals(results), "results": normalised(results, folder)}
    documents["report"] = structure((folder / "out" / "report.html").read_text(encoding="utf-8"))
    with (folder / "out" / "results.csv").open() as file:
        table = list(csv.reader(file))
    documents["results"]["csv"] = {"columns": table[0], "rows": len(table) - 1}
    documents["results"]["written"] = sorted(path.name for path in (folder / "out").iterdir())
    row = report.methods["scale"].sets["cat"]
    pair = (torch.from_numpy(report.scores.of("scale", name)) for name in ("id_test", "cat"))
    assert metrics.auroc(*pair) == row.auroc
    return documents


def intervals(results: Any) -> Any:
    """Take the intervals, and the marks that follow from them, out of the results of a benchmark."""
    taken: Any = {}
    for row, method in results["methods"].items():
        for kind in ("sets", "groups"):
            for name, part in method[kind].items():
                taken.setdefault(row, {})[name] = normalised({key: part.pop(key) for key in ("intervals", "marks")})
    wrong = results["wrong"]
    results["wrong"] = {row: {part: len(found) for part, found in parts.items()} for row, parts in wrong.items()}
    results["wrong"]["ebo"]["id_test"] = sorted(entry["index"] for entry in wrong["ebo"]["id_test"])
    return taken


HEADINGS = ("h1", "h2", "h3", "summary", "legend")
COUNTED = "a caption details figure h2 h3 image input section symbol table td th tr"


def structure(page: str) -> Any:
    """Return the headings, column titles, row titles and links of a page, and how many there are of each element."""
    found, texts = outline(page), dict[str, Counter[str]]()
    for (tag, attrs), parts in zip(found.tags, found.texts, strict=True):
        if tag in (*HEADINGS, "th"):
            kind = "column" if tag == "th" and attrs.get("scope") != "row" else tag
            texts.setdefault(kind, Counter())["".join(parts).strip()] += 1
    count = Counter(tag for tag, _ in found.tags)
    links = [attrs["href"] for tag, attrs in found.tags if tag == "a" and "href" in attrs]
    return {"elements": {tag: count[tag] for tag in COUNTED.split()}, "links": links, "texts": texts}


COLOURS = """
title = "Colours"
classes = ["red", "green", "blue", "yellow"]
[id]
train = "train"
val = "val"
test = "test"
[ood_val]
stripes = "stripes"
[near]
noise = "noise"
[far]
odd = "odd"
"""


def commands(folder: Path) -> Documents:
    """Run every command that has `--json` on the small network, with methods of two passes among the benchmark's."""
    images(folder)
    (folder / "colours.toml").write_text(COLOURS)
    other = {name: value * 0.9 if name == "body.0.weight" else value for name, value in load_file(WEIGHTS).items()}
    save_file(other, folder / "other.safetensors")
    network = ("--model", NETWORK, "--weights")
    found: Documents = {}
    for out, weights, methods in (
        ("one", WEIGHTS, "odin,adascale-a,adascale-l,scale(percentile=50),knn"),
        ("two", "other.safetensors", "ebo,scale(percentile=50),knn"),
    ):
        words = ("bench", "colours.toml", *network, weights, "--methods", methods, "--out", out, "--partial", *EAGER)
        found[f"bench {out}"] = results = json.loads(run(*words, "--json", cwd=folder))
        intervals(results) if "ebo" in results["methods"] else results.pop("wrong")
        report = api.Report.load(folder / out)
        found[f"scores {out}"] = {
            row: {name: report.scores.of(row, name).tolist()[::5] for name in ("id_test", "noise")}
            for row in report.methods
        }
    data = ("--weights", WEIGHTS, "--data", "val")
    for name, words in {
        "compare": ("compare", "one", "two", "-q"),
        "compare 0.1.0": ("compare", SAMPLES / "results-v1", SAMPLES / "results-v1", "-q"),
        "doctor": ("doctor", NETWORK, *data, "--ood", "noise", "-q"),
        "doctor without OOD images": ("doctor", NETWORK, *data, "-q"),
        "doctor without data": ("doctor", NETWORK, "--weights", WEIGHTS, "-q"),
        "extract": ("extract", NETWORK, "test", "odd", "--weights", WEIGHTS, "--out", "store", *EAGER),
        "extract again": ("extract", NETWORK, "test", "--weights", WEIGHTS, "--out", "store", "--resume", *EAGER),
        "data": ("data", "cifar10", "--root", ".", "-q"),
        "reproduce": ("reproduce", "cifar10", "--data", ".", "--out", "tables", "-q"),
        "analyze": ("analyze", "colours.toml", *network, WEIGHTS, "--out", "studies", "--limit", 20, "-q"),
    }.items():
        found[name] = json.loads(run(*words, "--json", cwd=folder))
    return {"commands": normalised(found, folder)}


KINDS: dict[str, tuple[object, ...]] = {
    "pooled": ("scale",),
    "per class": ("ebo", "--per-class"),
    "several recalls": ("chain(steps='react(percentile=95)+scale(percentile=70)')", "--recall", 0.95, "--recall", 0.8),
    "knn": ("knn(k=5)", "--train", "train"),
    "mds": ("mds", "--train", "train", "--false-alarm", 0.1),
    "fuse": ("fuse", "--train", "train"),
    "odin": ("odin",),
    "multi-label": ("mls", "--multi-label"),
    "auto": ("auto", "--ood", "noise", "--train", "train"),
}
"""Guards by kind: the method and the options of `idness calibrate`."""


def guards(folder: Path) -> Documents:
    """Calibrate a guard of each kind; judge images by the guard, by its ONNX graph, and by the guard loaded in Python."""
    images(folder)
    found: Documents = {}
    for kind, (method, *options) in KINDS.items():
        words = ("calibrate", NETWORK, "--weights", WEIGHTS, "--data", "val", "--method", method, *options, *EAGER)
        about = json.loads(run(*words, "-o", kind, "--json", cwd=folder))
        rows = judged(kind, folder)
        found[kind] = normalised({"guard": about, "verdicts": rows}, folder)
        found[kind]["written"] = sorted(re.sub("-[0-9a-f]{16}", "", path.name) for path in (folder / kind).iterdir())
        guard = api.Guard.load(folder / kind)
        paths = [folder / row["image"] for row in rows if "score" in row]
        plain = [{key: value for key, value in row.items() if key != "image"} for row in guard.judge(*paths).records()]
        assert normalised(plain) == [
            {key: value for key, value in normalised(row).items() if key != "image"} for row in rows if "score" in row
        ]
        if kind in ("odin", "mds", "auto"):  # odin needs gradients; the others would only take time
            continue
        run("export", kind, "-o", f"{kind}.onnx", "-q", cwd=folder)
        found[kind]["onnx"] = normalised(judged(f"{kind}.onnx", folder), folder)
        if kind == "several recalls":
            found[kind]["recall 0.5"] = normalised(judged(kind, folder, "--recall", 0.5))
            found[kind]["csv"] = run("score", kind, "new", "--csv", "-q", cwd=folder).splitlines()[0]
    return {"guards": found}


def judged(guard: object, folder: Path, *options: object) -> list[Any]:
    lines = run("score", guard, "new", "odd", "--json", "-q", *options, cwd=folder).splitlines()
    return [json.loads(line) for line in lines]


def train(folder: Path) -> Documents:
    """Train one epoch with each method, ISH twice."""
    images(folder)
    found: Documents = {"machine": machine()}
    options = shlex.split("--data train --val val --epochs 1 --threads 1 --lr 0.01 --batch-size 32 -q")
    words = ("train", "--model", NETWORK, "--init", WEIGHTS, *options)
    for method in (*training.METHODS, "ish again"):
        run(*words, "--method", method.split()[0], "--out", method, cwd=folder)
        weights = load_file(folder / method / "weights.safetensors")
        digest = hashlib.sha256(b"".join(weights[key].numpy().tobytes() for key in sorted(weights))).hexdigest()
        with (folder / method / "log.csv").open() as file:
            log = [{key: float(row[key]) for key in LOGGED} for row in csv.DictReader(file)]
        found[method] = {
            "weights": normalised({key: value.double().flatten().tolist()[::97] for key, value in weights.items()}),
            "norms": normalised({key: float(value.double().norm()) for key, value in weights.items()}),
            "log": normalised(log),
            "sha256": digest,
            "written": sorted({re.sub("[0-9]{8}", "N", path.name) for path in (folder / method).iterdir()}),
        }
    assert found["ish again"] == found["ish"], "two runs of ISH from one seed differ"
    del found["ish again"]
    assert found["ish"]["sha256"] != found["plain"]["sha256"]
    return {"train": found}


def machine() -> str:
    """Return what results to the bit depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.is_file() else []
    return f"{(names or ['unknown'])[0]}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


ACTIVATIONS = """
title = "Activations of 0.1.0"
head = "head.safetensors"
classes = ["red", "green", "blue", "yellow"]
[id]
train = "known.safetensors"
val = "known.safetensors"
test = "known.safetensors"
[ood_val]
a = "ood.safetensors"
[near]
b = "ood.safetensors"
"""


class Small(nn.Module):
    """The network of tests/samples/training-v1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.fc = nn.Linear(32, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(images))


def old_files(folder: Path) -> Documents:
    """Read what version 0.1.0 wrote: a guard, a store, activations, a stopped training run and results."""
    found: Documents = {}
    images(folder)
    guard = ("score", SAMPLES / "guard-v1", "new", "odd", "--model", NETWORK, "--weights", WEIGHTS, "--json", "-q")
    found["guard"] = [json.loads(line) for line in run(*guard, cwd=folder).splitlines()]
    [manifest] = (SAMPLES / "store-v1" / "sets").iterdir()
    acts = api.FeatureStore(SAMPLES / "store-v1").load(manifest.stem)
    found["store"] = {"features": acts.features[:, ::8].tolist(), "logits": acts.logits.tolist()}
    shutil.copytree(SAMPLES / "activations-v1", folder / "activations")
    (folder / "activations" / "old.toml").write_text(ACTIVATIONS)
    words = shlex.split("bench activations/old.toml --methods ebo,scale,knn(k=5) --out out --any-accuracy --json -q")
    results = json.loads(run(*words, cwd=folder))
    found["activations"] = {row: method["sets"]["b"]["auroc"] for row, method in results["methods"].items()}
    report = api.Report.load(SAMPLES / "results-v1")
    found["results"] = json.loads(report.to_json())
    found["results scores"] = {row: report.scores.of(row, "noise").tolist()[::5] for row in report.methods}
    for file in (SAMPLES / "training-v1").glob("checkpoint*"):
        (folder / "run").mkdir(exist_ok=True)
        shutil.copy(file, folder / "run")
    labels = torch.arange(24) % 3
    noise = torch.rand(24, 8, 8, 3, generator=torch.Generator().manual_seed(0)) * 80
    data = training.TrainingSet(
        (noise + labels.view(-1, 1, 1, 1) * 70).to(torch.uint8), labels, ("dark", "grey", "bright")
    )
    schedule = {"epochs": 2, "lr": 0.05, "warmup": 0.5, "milestones": ()}
    others = {"ema": 0.9, "checkpoint_every": 2, "batch_size": 8}
    done = training.finetune(Small(), data, "confbranch", out=folder / "run", **schedule, **others)
    found["training"] = [{"step": row.step, "loss": row.loss} for row in done.log]
    for name in ("weights.safetensors", "method.safetensors"):
        whole, resumed = load_file(SAMPLES / "training-v1" / name), load_file(folder / "run" / name)
        assert whole.keys() == resumed.keys()
        assert all(torch.allclose(whole[key], resumed[key], atol=1e-5) for key in whole)
    return {"old_files": normalised(found, folder)}


def interface(folder: Path) -> Documents:
    """Parse the commands and their options from `--help`; list the methods with options and grids, and the public names."""
    commands = {}
    for name in re.findall(r"^  ([a-z]+) {2,}\S", run("--help", cwd=folder).split("Options:")[1], re.MULTILINE):
        head, _, options = run(name, "--help", cwd=folder).partition("\nOptions:")
        commands[name] = {
            "arguments": described(head.partition("\nArguments:")[2]),
            "options": {key: value for key, value in described(options).items() if key != "--help"},
        }
    methods = {each["name"]: each for each in json.loads(run("list", "--json", cwd=folder))}
    for name, each in methods.items():
        each["grid"] = sorted(detector.label() for detector in api.build(name).variants())
    return {
        "interface": {
            "commands": commands,
            "methods": normalised(methods),
            "names": {module.__name__: sorted(module.__all__) for module in (api, api.methods, training)},
            "metrics": {name: str(inspect.signature(getattr(metrics, name))) for name in METRICS},
        }
    }


def described(section: str) -> dict[str, list[str]]:
    """Parse a section of `--help`: each argument or option, and its default or `required`."""
    entries = re.split(r"\n  (?=\S)", section)[1:]
    return {
        entry.split("  ")[0].strip(): re.findall(r"\[((?:default|required).*?)\]", " ".join(entry.split()))
        for entry in entries
    }


COLLECTORS: dict[str, Callable[[Path], Documents]] = {
    function.__name__: function for function in (bench, commands, guards, train, old_files, interface)
}
