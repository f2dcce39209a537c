"""Runs the application: slow and idle connections are closed, and a stop loses no accepted request."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from idness.core.errors import ModelError, OptionError
from idness.core.wording import shown
from idness.guard.guard import Guard
from idness.serve.app import make_app
from idness.serve.limits import Limits
from idness.serve.service import Service

BACKLOG = 1024
DOOR = 0.1
"""Seconds in which connections that are there already are accepted after the signal to stop."""
GRACE = 0.3
"""Seconds that an idle connection stays open after the signal to stop: a request may be on its way."""


def serve(
    guard: Guard,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    no_token: bool = False,
    hosts: Collection[str] = (),
    limits: Limits | None = None,
    batch: int | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a guard until SIGTERM or SIGINT, then answer what was accepted and return.

    Args:
        guard: a calibrated guard.
        host: the address to listen on; loopback unless another is named.
        port: the port; 0 takes a free one.
        key: the API key; none means open.
        no_token: whether an address that others can reach may be listened on without a key.
        hosts: names that the service is called by, beside `localhost` and addresses; they matter only without a key.
        limits: the limits.
        batch: images per batch at most; the fastest size where not given.
        started: called with the address once connections are taken.
    """
    check_reach(host, key, no_token=no_token)
    server, listener = make_server(
        guard, host=host, port=port, key=key, hosts=hosts, limits=limits, batch=batch, started=started
    )
    with _signals_end_here(), listener:
        server.run([listener])
    failure = server.service.failure
    if failure is not None:
        reason = shown(f"{type(failure).__name__}: {failure}", 300)
        raise ModelError(f"serve: the network fails on its first image ({reason}); is it the one that was calibrated?")


def check_reach(host: str, key: str | None, *, no_token: bool) -> None:
    """Refuse an address that others can reach unless clients need a key, or nobody minds."""
    if key is None and not no_token and not is_loopback(host):
        raise OptionError(
            f"serve: {host} can be reached by others, so that clients must show a key; give key=, or no_token=True if anybody may ask"
        )


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_server(
    guard: Guard,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    key: str | None = None,
    hosts: Collection[str] = (),
    limits: Limits | None = None,
    batch: int | None = None,
    started: Callable[[str], None] | None = None,
) -> tuple[_Server, socket.socket]:
    """Make a server that does not run yet, and the socket that it will listen on."""
    bounds = limits or Limits()
    app, service = make_app(guard, bounds, key=key, batch=batch, hosts=hosts)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_protocol(bounds),
        ws="none",
        loop="asyncio",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=int(bounds.stop_seconds),
        limit_concurrency=bounds.connections,
        backlog=BACKLOG,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.getLogger("python_multipart").setLevel(
        logging.ERROR
    )  # a stranger's broken form is no news, and could fill a disk
    return _Server(config, service, started), _listener(host, port)


class _Server(uvicorn.Server):
    """Says when it has started, and takes what waits at the door before it closes it."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[str], None] | None) -> None:
        super().__init__(config)
        self.service, self._told = service, started
        service.end = self._end

    def _end(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._told and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._told(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.stopping = True
        for listener in sockets or ():
            listener.listen(0)  # the system makes no more connections ...
        await asyncio.sleep(DOOR)  # ... and the loop accepts those that it has already made
        await super().shutdown(sockets)


def _protocol(limits: Limits) -> type[asyncio.Protocol]:
    class Protocol(H11Protocol):
        """Closes connections whose request does not come: uvicorn alone waits for ever."""

        head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                # Part of a head: the clock that runs since its first byte goes on.
                if self.head_timer is None:
                    self._expect_head()
            elif self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self.head_timer is not None:
                self.head_timer.cancel()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            """Give a request that is on its way a moment to arrive."""
            if self.cycle is None or self.cycle.response_complete:
                self.loop.call_later(GRACE, self._close_or_finish)
            else:
                super().shutdown()

        def _close_or_finish(self) -> None:
            if not self.transport.is_closing():
                super().shutdown()

        def _expect_head(self) -> None:
            self.head_timer = self.loop.call_later(limits.head_seconds, self._head_is_late)

        def _head_is_late(self) -> None:
            self.head_timer = None
            if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
                self.transport.close()

    return Protocol


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # The same as SO_REUSEADDR and bind, and closes the socket when that fails.
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise OptionError(f"serve: cannot listen on {host}:{port} ({error}); choose another host= or port=") from error
    # Connections take it over. Else the body of an answer waits until the client has acknowledged its head, which takes 40 ms;
    # asyncio sees to that itself only for sockets that name their protocol, as this one does not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextmanager
def _signals_end_here() -> Iterator[None]:
    """Keep uvicorn from raising the signal again after it has stopped in good order: that would end with an error's code."""

    def nothing(*_: Any) -> None: ...

    before = {number: signal.signal(number, nothing) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
