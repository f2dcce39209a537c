"""Connects to Ray, or starts it on this machine: quietly, without a dashboard, and with a bounded wait."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from idness.core.checks import check_count
from idness.core.errors import ClusterError, OptionError
from idness.core.extras import needed

WAIT = 10.0
"""How many seconds an address has to answer."""
STORE = 256 << 20
"""The bytes of a local Ray's object store: spans are named, not sent, so that little goes through it."""
PACKAGES = ("idness", "torch", "numpy", "pillow", "safetensors", "onnxruntime", "openvino", "pyarrow")
"""What must be of one version everywhere: each may change what comes of an image, or how it is written."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is told to anyone
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # what matters comes back as an error
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of spans that are given up when a worker refuses
    "RAY_worker_niceness": "0",  # the actors do the work that the user waits for
}
SAFE = ("RAY_AUTH_MODE", "token")
"""Lets no one else give work to a local cluster: as Ray has it too, but with a line that says so."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of gRPC begins, with an empty frame of settings."""


@dataclass(frozen=True)
class Pool:
    """Says where the work is done, and by how many.

    Args:
        address: of a Ray cluster, as `ray.init` takes it; none starts Ray on this machine.
        actors: how many processes have a network of their own, each with as many threads as this process has; if not given, as many as
            there are cores for, or GPUs.
        gpus: how many GPUs each of them has; a fraction shares one.
    """

    address: str | None = None
    actors: int | None = None
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.actors is not None:
            check_count(self, "actors")
        if self.gpus < 0:
            raise OptionError(f"Pool: gpus_per_actor= must be at least 0, got {self.gpus:g}")

    def cores(self, threads: int) -> int:
        """Say how many cores an actor of so many threads takes; on a GPU it needs one."""
        return 1 if self.gpus else threads

    def size(self, ray: Any, threads: int = 1) -> int:
        """Say how many actors there will be, or that the cluster has too little for one."""
        has = ray.cluster_resources()
        cores, cards, each = int(has.get("CPU", 0)), float(has.get("GPU", 0)), self.cores(threads)
        room = int(cards / self.gpus) if self.gpus else cores // each
        wanted = self.actors or max(room, 1)
        if wanted > room:
            what = (
                f"{cards:g} GPUs, each actor asks for {self.gpus:g}"
                if self.gpus
                else f"{cores} cores, each actor asks for {each}"
            )
            hint = ", or set OMP_NUM_THREADS=1" if each > 1 else ""
            raise ClusterError(f"the cluster has {what}: not enough for {wanted} actors; give fewer actors={hint}")
        return wanted


def versions() -> dict[str, str]:
    """Give the versions of Python and of all packages that decide what comes of an image."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


@contextmanager
def connected(pool: Pool, threads: int = 1) -> Iterator[Any]:
    """Give Ray: the one that this process is connected to already, the cluster at the address, or one that is started for the block."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if pool.address is None and "ray" not in sys.modules:  # which reads it once
        os.environ.setdefault(*SAFE)
    ray = needed("ray", "engine ray", "ray", ClusterError)
    needed("ray.util", "engine ray", "ray", ClusterError)
    logging.getLogger("ray").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield ray
        return
    try:
        _start(ray, pool, threads)
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, pool: Pool, threads: int) -> None:
    common: dict[str, Any] = {"configure_logging": False, "log_to_driver": False}
    try:
        with _hushed():
            if pool.address is not None:
                ray.init(address=pool.address, **common)
            else:
                cores = max(os.cpu_count() or 1, (pool.actors or 1) * pool.cores(threads))
                ray.init(address="local", num_cpus=cores, include_dashboard=False, object_store_memory=STORE, **common)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        if pool.address is None:
            raise ClusterError(f"Ray cannot be started ({first_line(error)})") from error
        hint = "" if "RAY_AUTH_MODE" in os.environ else "; if it wants a token, set RAY_AUTH_MODE=token"
        raise ClusterError(f"Ray cannot be used at address={pool.address!r} ({first_line(error)}){hint}") from error


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep what Ray's C++ part writes past Python while it starts; what matters comes back as an error."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def check_answers(pool: Pool) -> None:
    """Refuse an address where nothing answers as Ray does; Ray itself would wait for minutes and end the process."""
    address = pool.address or ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or os.environ.get("RAY_USE_TLS") == "1":
        return  # such as auto, which Ray looks up
    try:
        with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
            connection.settimeout(WAIT)
            connection.sendall(PREFACE)
            answered = connection.recv(9)
    except OSError as error:
        why = f"waited {WAIT:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ClusterError(
            f"no Ray answers at address={address!r} ({why}); is it running there? ray start --head starts it"
        ) from error
    if len(answered) < 9 or answered[3] != PREFACE[-6]:
        raise ClusterError(
            f"what answers at address={address!r} is not Ray; ray start --head says which address it has"
        )


def first_line(error: BaseException) -> str:
    """Give what matters of an error of Ray's, which may have a page: the last line of what a worker raised, or the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    told = [line for line in lines if line.startswith(("ModuleNotFoundError", "ImportError"))]
    if told:
        here = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
        return f"{told[-1]} on a worker; install idness[ray] for {here} on every machine of the cluster"
    return (lines[-1] if "Traceback" in str(error) else lines[0])[:300]
