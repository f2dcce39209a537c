"""Extraction and scoring on Ray: a pool of actors, each with its own network, processes the parts of a data set.

The driver assigns each part to the next free actor, which writes a file and returns its hash. Only the names of images go through
Ray, and only those of parts in progress, so memory does not grow with the data set. Ray restarts actors that die and repeats their
unfinished parts; a part that already has a file is not recomputed. The files are identical to those that one process would write.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idness.activations.extract import Span, finish, plan_spans, shard_of
from idness.activations.store import FeatureStore
from idness.benchmark.extraction import Extraction, Filled, filled
from idness.core.errors import ClusterError, IdnessError, ModelError, needed
from idness.core.files import marked
from idness.core.options import check_count
from idness.core.progress import Progress
from idness.core.scripts import Script, approved
from idness.data import ImageSet
from idness.guard.guard import Guard
from idness.guard.onnx import SUFFIX, GraphGuard
from idness.guard.score import Tally, VerdictTable
from idness.guard.storage import read_manifest
from idness.networks.engines import EngineRunner
from idness.networks.modules import as_input
from idness.networks.open import ModelOptions, open_network

WAIT = 10.0
"""Seconds to wait for an address to respond."""
STORE = 256 << 20
"""Size in bytes of the object store of a local Ray, through which little data goes."""
PACKAGES = ("idness", "torch", "numpy", "pillow", "safetensors", "onnxruntime", "openvino", "pyarrow")
"""Packages that must have the same version on all machines, because they affect values or files."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # parts that are abandoned when a worker fails
    "RAY_worker_niceness": "0",  # the user waits for the actors
}
Process = Callable[[Span, ImageSet, Sequence[str], Tensor | None], dict[str, Any]]
"""A function that processes one part of a data set, given its images, their names and, if known, labels; returns plain values."""
Opener = Callable[[], Process]
SetPart = tuple[ImageSet, Span, Tensor | None]
"""A data set, a range of it, and the labels of the whole set."""
KEPT = "finished parts are kept; continue with resume=True"


@dataclass(frozen=True)
class Pool:
    """A pool of actors on the Ray cluster at `address` (`None` starts Ray on this machine).

    Each actor has its own network and as many threads as this process; by default there are as many actors as the cluster's cores or
    GPUs allow. With a fraction as `gpus`, actors share a GPU.
    """

    address: str | None = None
    actors: int | None = None
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.actors is not None:
            check_count(self, "actors")

    def size(self, ray: Any, threads: int = 1) -> int:
        """Return the number of actors; raise if the cluster does not have enough cores or GPUs."""
        has = ray.cluster_resources()
        kind, each = ("GPU", self.gpus) if self.gpus else ("CPU", threads)
        room = int(has.get(kind, 0) / each)
        wanted = self.actors or max(room, 1)
        if wanted > room:
            hint = ", or set OMP_NUM_THREADS=1" if kind == "CPU" and each > 1 else ""
            found = f"the cluster has {has.get(kind, 0):g} {kind}s and each actor needs {each:g}"
            raise ClusterError(f"{found}, which is not enough for {wanted} actors; use fewer actors={hint}")
        return wanted


def extract_on_ray(job: Extraction, pool: Pool, progress: Progress | None = None) -> list[Filled]:
    """Compute the missing shards of a feature store on a cluster."""
    progress, store = progress or Progress(), job.store
    progress.phase("network", job.images)
    parts: list[SetPart] = []
    for _, images in job.sets:
        known = job.network.labels_of(images)
        parts += [(images, span, known) for span in plan_spans(job.network, images, known, store)]
    hashes = [store.find(span.key) for _, span, _ in parts]
    missing = {number: part for number, part in enumerate(parts) if hashes[number] is None}
    for number, result in run_on_ray(extractor(job, pool), store.root, missing, pool, job.images, progress):
        hashes[number] = result["sha256"]
    done = []
    for name, images in job.sets:
        own = [number for number, (owner, *_) in enumerate(parts) if owner is images]
        key = finish(job.network, images, store, {parts[number][1].key: hashes[number] or "" for number in own})
        done.append(filled(store, name, images, key, _images(missing[number] for number in own if number in missing)))
    return done


def extractor(job: Extraction, pool: Pool) -> Opener:
    """Return a function with which an actor opens the network of this process."""
    network, settings = job.network, job.settings
    options = ModelOptions(
        *_absolute(*job.options.located()),
        layer=network.split.layer,
        multi_label=network.split.multi_label,
        class_names=network.class_names or (),
        preprocessing=network.preprocessing,
        precision=network.precision.used,
        device="cuda" if pool.gpus else job.options.device,
    )
    same: dict[str, Any] = {"precision": network.precision, "size": network.size, "engine": network.engine}
    size, workers = settings.batch_size or network.batch, settings.workers or torch.get_num_threads()
    out, sample, identity = job.store.root.resolve(), job.sample, network.identity

    def opener() -> Process:
        network = replace(open_network(options), **same)
        if network.identity != identity:
            raise ModelError(f"{options.model} differs from the driver's network")
        if network.engine is not None:
            inputs = as_input(network.split.model, network.preprocessing.normalize(sample))
            network.split.runner = EngineRunner.adopting(network.engine, network.split, inputs)
        store = FeatureStore(out)

        def process(span: Span, images: ImageSet, _: Sequence[str], labels: Tensor | None) -> dict[str, Any]:
            found = store.find(span.key)
            if found is None:
                found = store.put(span.key, shard_of(network, images, labels, span.start, size, workers))
            return {"sha256": found}

        return process

    return opener


def score_on_ray(
    table: VerdictTable,
    guard: Path,
    model: str | None,
    weights: str | None,
    pool: Pool,
    progress: Progress | None = None,
) -> Tally:
    """Score on a cluster the images that the table does not contain yet, and return the counts of all its verdicts."""
    progress, images = progress or Progress(), table.images
    assert images is not None
    spans = table.start(progress)
    missing: dict[int, SetPart] = {
        number: (images, Span(*span), None) for number, span in enumerate(spans) if not table.has(span[2])
    }
    if model is None and guard.suffix != SUFFIX:
        known = read_manifest(guard).model
        # Scripts that the user approved here are also approved on the workers, which have no list of their own.
        model = None if known.spec is None else approved(known.spec, code=known.code)
    path, (model, weights) = guard.resolve(), _absolute(model or "", weights)
    options: dict[str, Any] = {"weights": weights, "images": len(images)}
    recalls: tuple[float, ...] = ()
    if not isinstance(table.guard, GraphGuard):
        runner, recalls = table.guard.split.runner, table.guard.recalls
        options["engine"] = None if runner is None else runner.asked
    device, folder, identity = "cuda" if pool.gpus else "cpu", table.folder.resolve(), table.identity
    same: dict[str, Any] = {"batch": table.batch, "keep": table.keep, "fdr": table.fdr}

    def opener() -> Process:
        if path.suffix == SUFFIX:
            loaded: Guard | GraphGuard = GraphGuard(path)
        else:
            loaded = Guard.load(path, model or None, **options)
            loaded.set_recall(*recalls).to(device)
        table = VerdictTable(loaded, folder, **same)
        if table.identity != identity:
            raise ModelError(f"{path} differs from the driver's guard")

        def process(span: Span, images: ImageSet, names: Sequence[str], _: Tensor | None) -> dict[str, Any]:
            if not table.has(span.key):
                table.score_span(images, names, span.key)
            return {}

        return process

    for _ in run_on_ray(opener, table.folder, missing, pool, len(images), progress):
        pass
    return table.finish([file for *_, file in spans])


def _absolute(spec: str, weights: str | Path | None) -> tuple[str, str | None]:
    """Return the name and weights of a network with absolute paths, since workers have another working folder."""
    script = Script.named(spec)
    named = None if weights is None else "none" if str(weights) == "none" else str(Path(weights).resolve())
    return spec if script is None else script.key, named


def run_on_ray(
    opener: Opener, out: Path, missing: dict[int, SetPart], pool: Pool, total: int, progress: Progress
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Process the missing parts with a pool of actors; yield their numbers and results as they arrive.

    `opener` is called once per actor; `total` counts the images of all parts.
    """
    progress.advance(total - _images(missing.values()))
    if not missing:
        return
    threads, out = torch.get_num_threads(), out.resolve()

    def submit(actor: Any, number: int) -> Any:
        images, span, known = missing[number]
        part = images.portion(span.start, span.stop)
        names = [images.item(index) for index in range(span.start, span.stop)]
        labels = None if known is None else known[span.start : span.stop].clone()
        return actor.do.remote(number, part.present(), span, part, names, labels)

    with marked(out) as mark, connected(pool, threads) as ray:
        needs = {"num_cpus": 1 if pool.gpus else threads, "num_gpus": pool.gpus or None}
        kind = ray.remote(**needs, max_restarts=-1, max_task_retries=-1)(Actor)
        size = min(pool.size(ray, threads), len(missing))
        actors = [kind.remote(opener, threads, out / mark, versions()) for _ in range(size)]
        # Each actor is listed twice, so that its next part is already waiting when one is done.
        crew = ray.util.ActorPool([*actors, *actors])
        try:
            for number, result in crew.map_unordered(submit, list(missing)):
                if "refusal" in result:
                    raise ClusterError(result["refusal"])
                progress.advance(_images([missing[number]]))
                yield number, result
        except ray.exceptions.RayError as error:
            raise ClusterError(f"a worker failed: {ray_reason(error)}; {KEPT}") from error
        finally:
            for actor in actors:
                ray.kill(actor)


def _images(parts: Iterable[SetPart]) -> int:
    return sum(span.stop - span.start for _, span, _ in parts)


class Actor:
    """A process with its own network. Errors are returned as one line, because Ray would print long tracebacks."""

    def __init__(self, opener: Opener, threads: int, mark: Path, expected: dict[str, str]) -> None:
        self.refusal, found = "", versions()
        torch.set_num_threads(threads)  # another number would change the rounding of sums
        for name, wanted in expected.items():
            if found.get(name) != wanted:
                self.refusal = (
                    f"has {name} {found.get(name)}, but this machine has {wanted}; install the same versions everywhere"
                )
        if not mark.exists():
            self.refusal = f"cannot access {mark.parent}; use a folder that all machines of the cluster share"
        if not self.refusal:
            try:
                self.process = opener()
            except (IdnessError, OSError) as error:
                self.refusal = f"{error}; every worker needs the same files"

    def do(self, number: int, visible: bool, span: Span, images: ImageSet, *more: Any) -> tuple[int, dict[str, Any]]:
        """Process a part; return its number and the result. `visible` is whether the driver can see the images' files."""
        said = self.refusal
        if not said and visible and not images.present():
            said = f"cannot access the images of {images.source}; use a folder that every worker can access, or a URL"
        if not said:
            try:
                return number, self.process(span, images, *more)
            except (IdnessError, OSError) as error:
                said = f"{error}; {KEPT}"
        return number, {"refusal": f"worker on {socket.gethostname()}: {said}"}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect values or files."""
    found = {"python": platform.python_version()} | dict.fromkeys(PACKAGES, "none")
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@contextmanager
def connected(pool: Pool, threads: int = 1) -> Iterator[Any]:
    """Connect to the cluster at the pool's address, or start Ray, for the block."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if pool.address is None and "ray" not in sys.modules:  # read on import; a local cluster must not be used by others
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    ray = needed("ray", "engine ray", "ray", ClusterError)
    logging.getLogger("ray").setLevel(logging.ERROR)
    options: dict[str, Any] = {"address": pool.address, "configure_logging": False, "log_to_driver": False}
    if pool.address is None:
        cores = max(os.cpu_count() or 1, (pool.actors or 1) * (1 if pool.gpus else threads))
        options |= {"address": "local", "num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "start Ray" if pool.address is None else f"use Ray at address={pool.address!r}"
        hint = "" if "RAY_AUTH_MODE" in os.environ else "; if it requires a token, set RAY_AUTH_MODE=token"
        raise ClusterError(f"cannot {where} ({ray_reason(error)}){hint}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_answers(pool: Pool) -> None:
    """Raise if nothing responds at the address; Ray itself would wait for minutes and exit the process."""
    host, _, port = (pool.address or "").removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # not `auto`, which Ray looks up
            socket.create_connection((host, int(port)), timeout=WAIT).close()
    except OSError as error:
        where = f"address={pool.address!r} ({error.strerror or error})"
        raise ClusterError(f"no Ray cluster responds at {where}; start it with: ray start --head") from error


def ray_reason(error: BaseException) -> str:
    """Return the relevant line of a Ray error: the last one of a worker's traceback, or the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    for line in lines:
        if line.startswith(("ModuleNotFoundError", "ImportError")):
            return f"{line} on a worker; install idness[ray] with the same Python on every machine of the cluster"
    return (lines[-1] if "Traceback" in str(error) else lines[0])[:300]
