"""Lets a pool of actors do the spans of a set, each once, however many of them are killed.

Ray Data hands out numbers of spans; an actor asks where what a number stands for is, fetches it, does it, writes a file,
and says so. So only names of images go through Ray, and only those of the spans that are under way: memory does not grow with
the set. Actors that die are started again by Ray, which repeats what they had not answered; a file that is there is not made again.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from idness.cluster.holder import Holder
from idness.cluster.session import STORE, Pool, connected, first_line, versions
from idness.core.errors import ClusterError, IdnessError
from idness.core.files import marked
from idness.data import ImageSet

KEPT = "what is done is kept, go on with resume=True"
NAMED = 500
"""Bytes that the name of an image takes at most, on its way to where the set is held."""
BLOCKS = 10_000
"""Into how many parts the numbers of spans are divided at most; each is handed out as one."""


@dataclass(frozen=True)
class Task:
    """Holds all that an actor needs for one span: its images, where they are in the whole, and what to call them.

    `there` says whether the driver sees the images' files. `labels` are the classes of the images, where they are known, as bytes.
    """

    number: int
    start: int
    key: str
    images: ImageSet
    names: Sequence[str] = ()
    labels: bytes | None = None
    there: bool = True


class Work(Protocol):
    """Describes a job so that an actor anywhere can do its spans; it is sent to each."""

    @property
    def out(self) -> str:
        """The folder that the files go to."""
        ...

    @property
    def threads(self) -> int:
        """How many threads run the network: as many as in one process, for with others sums are rounded otherwise."""
        ...

    def open(self) -> Doer:
        """Load what the work is done with; once for each actor."""
        ...


class Doer(Protocol):
    """Does spans."""

    def __call__(self, task: Task) -> dict[str, Any]:
        """Do one, and say in plain values what came of it."""
        ...


class Spans(Protocol):
    """Gives what each number of a span stands for."""

    @property
    def images(self) -> int:
        """How many images there are in all."""
        ...

    def task(self, number: int) -> Task:
        """Give one."""
        ...


def done_by_ray(
    work: Work, spans: Spans, numbers: Sequence[int], pool: Pool, expected: dict[str, str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Have all spans of these numbers done, and give what came of each, in the order in which they are done."""
    with marked(Path(work.out)) as mark, connected(pool, STORE + NAMED * spans.images, work.threads) as ray:
        size = min(pool.size(ray, work.threads), len(numbers))
        # It needs no core of its own: it only says where in Ray's store a span is.
        held = {number: ray.put(spans.task(number)) for number in numbers}
        holder = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Holder).remote(held)
        try:
            arguments = (work, holder, mark, expected or versions())
            yield from _run(ray, arguments, numbers, size, pool.cores(work.threads), pool.gpus)
        except ray.exceptions.RayError as error:
            raise ClusterError(f"a worker failed: {first_line(error)}; {KEPT}") from error
        finally:
            ray.kill(holder)


def _run(
    ray: Any, arguments: tuple[Any, ...], numbers: Sequence[int], size: int, cores: int, gpus: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    data = ray.data.from_items(
        [{"number": number} for number in numbers], override_num_blocks=min(len(numbers), BLOCKS)
    ).map_batches(
        Actor,
        fn_constructor_args=arguments,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=2),
        num_cpus=cores,
        num_gpus=gpus or None,
    )
    for row in data.iter_rows():
        said = json.loads(row["said"])
        if "refusal" in said:
            raise ClusterError(said["refusal"])
        yield int(row["number"]), said


class Actor:
    """Has a network of its own, and does one span after the other.

    What is wrong is not raised, for Ray would try again elsewhere and show a page, but said: the driver stops with that line.
    """

    def __init__(self, work: Work, holder: Any, mark: str, expected: dict[str, str]) -> None:
        self.holder = holder
        self.do: Doer | None = None
        self.refusal = _differs(expected) or _hidden(work.out, mark)
        if not self.refusal:
            try:
                self.do = work.open()
            except (IdnessError, OSError) as error:
                self.refusal = f"{where()}: {error}; every worker needs the same files"

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Do the span whose number came."""
        import ray

        [number] = batch["number"]
        if self.do is None:
            return _said(number, {"refusal": self.refusal})
        [place] = ray.get(self.holder.place.remote(int(number)))
        task: Task = ray.get(place)
        if task.there and not task.images.present():
            refusal = f"{where()}: does not see the images of {task.images.source}; put them where every worker sees them, or give a URL"
            return _said(number, {"refusal": refusal})
        try:
            return _said(number, self.do(task))
        except (IdnessError, OSError) as error:
            return _said(number, {"refusal": f"{where()}: {error}; {KEPT}"})


def _differs(expected: dict[str, str]) -> str:
    """Say which version is another here than where the work comes from; nothing where all are the same."""
    found = versions()
    for name, wanted in expected.items():
        if found.get(name) != wanted:
            return (
                f"{where()}: has {name} {found.get(name)}, this machine {wanted}; install the same versions everywhere"
            )
    return ""


def _hidden(out: str, mark: str) -> str:
    """Say that the output is another folder here than where the work comes from; nothing where it is the same."""
    if (Path(out) / mark).exists():
        return ""
    return f"{where()}: does not see {out}; give a folder that all machines of the cluster share"


def where() -> str:
    """Name the machine of this worker."""
    return f"worker on {socket.gethostname()}"


def _said(number: Any, said: dict[str, Any]) -> dict[str, Any]:
    return {"number": [int(number)], "said": [json.dumps(said)]}
