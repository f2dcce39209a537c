"""Lets a pool of actors do the spans of a set, each once, however many of them are killed.

The driver hands a span to whichever of Ray's actors is free; it does it, writes a file, and says so. So only names of images go through
Ray, and only those of the spans that are under way: memory does not grow with the set. Actors that die are started again by Ray, which
repeats what they had not answered; a file that is there is not made again.

Ray's own pool of actors does it; Ray Data, made for rows that move from step to step, would start three processes more and look ten
times a second whether anything is done.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from idness.cluster.session import Pool, connected, first_line, versions
from idness.core.errors import ClusterError, IdnessError
from idness.core.files import marked
from idness.data import ImageSet

KEPT = "what is done is kept, go on with resume=True"


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

    def task(self, number: int) -> Task:
        """Give one."""
        ...


def done_by_ray(
    work: Work, spans: Spans, numbers: Sequence[int], pool: Pool, expected: dict[str, str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Have all spans of these numbers done, and give what came of each, in the order in which they are done."""
    with marked(Path(work.out)) as mark, connected(pool, work.threads) as ray:
        needs = {"num_cpus": pool.cores(work.threads), "num_gpus": pool.gpus or None}
        kind = ray.remote(**needs, max_restarts=-1, max_task_retries=-1)(Actor)
        held = ray.put(work)
        size = min(pool.size(ray, work.threads), len(numbers))
        actors = [kind.remote(held, mark, expected or versions()) for _ in range(size)]
        # Each is there twice, so that it finds another span waiting when one is done.
        crew = ray.util.ActorPool([*actors, *actors])
        try:
            for number, said in crew.map_unordered(lambda actor, number: actor.do.remote(spans.task(number)), numbers):
                if "refusal" in said:
                    raise ClusterError(said["refusal"])
                yield number, said
        except ray.exceptions.RayError as error:
            raise ClusterError(f"a worker failed: {first_line(error)}; {KEPT}") from error
        finally:
            for actor in actors:
                ray.kill(actor)


class Actor:
    """Has a network of its own, and does one span after the other.

    What is wrong is not raised, for Ray would show a page, but said: the driver stops with that line.
    """

    def __init__(self, work: Work, mark: str, expected: dict[str, str]) -> None:
        self.doer: Doer | None = None
        self.refusal = _differs(expected) or _hidden(work.out, mark)
        if not self.refusal:
            try:
                self.doer = work.open()
            except (IdnessError, OSError) as error:
                self.refusal = f"{where()}: {error}; every worker needs the same files"

    def do(self, task: Task) -> tuple[int, dict[str, Any]]:
        """Do a span, and give its number and what came of it."""
        if self.doer is None:
            return task.number, {"refusal": self.refusal}
        if task.there and not task.images.present():
            refusal = f"{where()}: does not see the images of {task.images.source}; put them where every worker sees them, or give a URL"
            return task.number, {"refusal": refusal}
        try:
            return task.number, self.doer(task)
        except (IdnessError, OSError) as error:
            return task.number, {"refusal": f"{where()}: {error}; {KEPT}"}


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
