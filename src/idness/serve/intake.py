"""Stands in front of the application: hosts, keys, body size, slow bodies, too many requests, headers, counting."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from idness.core.errors import OptionError
from idness.serve.limits import Limits
from idness.serve.problems import Problem, overloaded

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Told = Callable[[str, int, float], None]

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'; base-uri 'none'",
    ),
)
GUARDED = ("/v1/", "/metrics")
"""Where the API key is asked for; the page itself holds nothing worth a key."""
SHORTEST_KEY = 16
"""Characters that an API key has at least."""
DRAIN_SECONDS = 2.0
PATIENCE = 0.25
"""Seconds that a body may take before another request may have its place."""


def check_key(key: str, where: str = "key=") -> str:
    """Return an API key, or refuse one that could be guessed or not be sent; the one rule for every source of keys."""
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable():
        raise OptionError(
            f"serve: {where} must hold one line of at least {SHORTEST_KEY} ASCII characters, got {len(key)};"
            " make one with: openssl rand -hex 32"
        )
    return key


class Intake:
    """Reads each request's body whole, within limits, before the application sees it.

    Args:
        app: the application.
        limits: the limits.
        key: the API key; none means open.
        told: called with path, status and seconds of each request.
        hosts: names that the service is called by beside `localhost` and addresses. Asked for only where there is no key: a page of
            a stranger whose name leads here would read, in its visitor's browser, what the service shows to all.
    """

    def __init__(self, app: App, limits: Limits, key: str | None, told: Told, hosts: Collection[str] = ()) -> None:
        self.app, self.limits, self.told = app, limits, told
        self._key = None if key is None else check_key(key).encode()
        self._named = {host.lower() for host in hosts}
        self._hosts = {"localhost", *self._named}
        self._readers: list[_Reader] = []
        self.active = self.held = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        started = time.perf_counter()
        try:
            await self._handle(scope, receive, answer.send)
        except Problem as problem:
            if not answer.status:
                await _drain(receive, self.limits.body)
                await _tell(answer.send, problem)
        except Exception as error:
            # The application has told its client already: the connection is good for the next request.
            logging.getLogger("uvicorn.error").error("a request failed", exc_info=error)
            if not answer.status:
                await _tell(answer.send, Problem(500, f"the server failed on this request ({type(error).__name__})"))
        finally:
            self.told(scope["path"], answer.status or 499, time.perf_counter() - started)

    async def _handle(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self._check_host(headers)
        self._check_key(scope["path"], headers)
        if scope["method"] not in ("POST", "PUT", "PATCH", "DELETE"):
            await self.app(scope, receive, send)
            return
        self._check_origin(headers)
        with self._reading() as reader:
            body = await self._body(headers, receive, reader)
            if body is None:
                return
            reader.leave()
            if self.active >= self.limits.requests:
                raise overloaded(f"{self.active} requests are under way")
            self.active += 1
            try:
                await self.app(scope, _replay(body, receive), send)
            finally:
                self.active -= 1

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        given = headers.get(b"host")
        if self._key is not None or given is None:
            return
        name = _host_name(given.decode("latin-1"))
        if name not in self._hosts and not _is_address(name):
            raise Problem(421, f"this server is not called {name[:80]!r}; its owner can name it with --allow-host")

    def _check_origin(self, headers: dict[bytes, bytes]) -> None:
        """Refuse what a page of another origin sends through its visitor's browser; a key, if there is one, has refused it already."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if self._key is not None or site in (b"same-origin", b"none"):
            return
        place = b"" if origin is None else origin.partition(b"://")[2].lower()
        own = origin is None or place == headers.get(b"host", b"").lower() or place.decode("latin-1") in self._named
        if site is not None or not own:
            shown = (origin or site or b"").decode("latin-1")[:80]
            raise Problem(
                403, f"request from another origin, {shown!r}; open this server's own page or start it with a token"
            )

    def _check_key(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self._key is None or not path.startswith(GUARDED):
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = headers.get(b"x-api-key") or (token.strip() if scheme.lower() == b"bearer" else b"")
        if not hmac.compare_digest(given, self._key):
            raise Problem(
                401,
                "an API key is needed: send it as X-API-Key or Authorization: Bearer",
                {"WWW-Authenticate": "Bearer"},
            )

    @contextmanager
    def _reading(self) -> Iterator[_Reader]:
        """Hold a place for a request that is read; where all are taken, the slowest gives way."""
        if len(self._readers) >= self.limits.requests:
            now = time.monotonic()
            slow = [reader for reader in self._readers if now - reader.started > PATIENCE]
            if not slow:
                raise overloaded(f"{len(self._readers)} requests arrive")
            min(slow, key=lambda reader: reader.rate(now)).send_away()
        reader = _Reader(self._readers)
        try:
            yield reader
        finally:
            reader.leave()
            self.held -= reader.size

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, reader: _Reader) -> bytes | None:
        """Read the body; none when the client has gone."""
        too_large = Problem(413, f"the body must be at most {self.limits.body:,} bytes")
        if headers.get(b"content-encoding", b"identity").lower() not in (b"", b"identity"):
            raise Problem(415, "the body must not be compressed (Content-Encoding)")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.limits.body:
            raise too_large
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self.limits.body_seconds) as reader.clock:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    reader.size += len(part)
                    self.held += len(part)
                    if reader.size > self.limits.body:
                        raise too_large
                    if self.held > self.limits.held:
                        raise overloaded(f"{self.held:,} bytes are held")
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            if reader.sent_away:
                raise Problem(408, "the body came too slowly, and others were waiting; send it again") from None
            raise Problem(408, f"the body must arrive within {self.limits.body_seconds:g} seconds") from None


class _Reader:
    """Keeps how fast a request's body comes, and its place among those that are read."""

    def __init__(self, readers: list[_Reader]) -> None:
        self._readers, self.started, self.size, self.sent_away = readers, time.monotonic(), 0, False
        self.clock: asyncio.Timeout | None = None
        readers.append(self)

    def rate(self, now: float) -> float:
        """Give the bytes per second so far."""
        return self.size / max(now - self.started, 1e-9)

    def send_away(self) -> None:
        """End the reading at once, as if its time were up."""
        self.sent_away = True
        self.leave()
        if self.clock is not None:
            self.clock.reschedule(0.0)

    def leave(self) -> None:
        """Give the place to another."""
        if self in self._readers:
            self._readers.remove(self)


def _host_name(given: str) -> str:
    """Take the port off a Host header."""
    if given.startswith("["):
        return given[1:].partition("]")[0]
    name, _, port = given.rpartition(":")
    return (name if port.isdigit() and name else given).lower().rstrip(".")


def _is_address(name: str) -> bool:
    """Say whether a name is an address, which no name server can change."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Answer:
    """Adds headers to an answer and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await self._send(message)


async def _tell(send: Send, problem: Problem) -> None:
    body = problem.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _drain(receive: Receive, most: int) -> None:
    """Throw away some of what still comes: a client that is cut off while it sends may never read why."""
    size = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < most:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body that was read as one message, then whatever comes from the server (a disconnect)."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
