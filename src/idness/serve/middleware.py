"""Access control of the service: API key, host and origin checks, security headers, and request counting."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from idness.core.errors import OptionError
from idness.serve.schemas import ApiError, error_response

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'; base-uri 'none'",
}
PROTECTED = ("/v1/", "/v2/models", "/metrics")
"""Paths that require the API key; the page itself contains nothing confidential."""
SHORTEST_KEY = 16
"""Minimum number of characters of an API key."""


def check_key(key: str, where: str = "key=") -> str:
    """Return an API key if it is long enough and can be sent in a header."""
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable():
        raise OptionError(
            f"serve: {where} must be one line of at least {SHORTEST_KEY} ASCII characters, got {len(key)};"
            " create one with: openssl rand -hex 32"
        )
    return key


def check_reach(host: str, key: str | None, *, no_token: bool) -> None:
    """Refuse to listen without a key on an address that other machines can reach."""
    loopback = host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
    if key is None and not no_token and not loopback:
        raise OptionError(
            f"serve: {host} is reachable from other machines, so clients need a key;"
            " pass key=, or no_token=True to allow everyone"
        )


class AccessMiddleware:
    """ASGI middleware that checks access, sets security headers, and reports path, status and duration of requests to `record`.

    Host names and origins are checked only without a key. Otherwise a page of another site could use the service through its
    visitor's browser: read responses by DNS rebinding, or send images with a cross-site form.
    """

    def __init__(
        self, app: ASGIApp, key: str | None, hosts: Collection[str], record: Callable[[str, int, float], None]
    ) -> None:
        self.app, self.record = app, record
        self._key = None if key is None else key.encode()
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = 499, time.perf_counter()  # 499: the client disconnected before the response

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        try:
            self._check(scope["method"], scope["path"], Headers(scope=scope))
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass
        except HTTPException as error:
            await error_response(error)(scope, receive, send_with_headers)
        except Exception as error:
            # Caught here, since uvicorn would close the connection. The message is not sent to the client.
            logging.getLogger("uvicorn.error").error("a request failed", exc_info=error)
            failed = ApiError(500, f"the server failed on this request ({type(error).__name__})")
            await error_response(failed)(scope, receive, send_with_headers)
        finally:
            self.record(scope["path"], status, time.perf_counter() - started)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        if self._key is None:
            self._check_host(headers)
            if method not in ("GET", "HEAD", "OPTIONS"):
                self._check_origin(headers)
        elif path.startswith(PROTECTED):
            scheme, _, token = headers.get("authorization", "").partition(" ")
            given = headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
            if not hmac.compare_digest(given.encode(), self._key):
                message = "the API key is missing or wrong; send it as X-API-Key or Authorization: Bearer"
                raise ApiError(401, message, {"WWW-Authenticate": "Bearer"})

    def _check_host(self, headers: Headers) -> None:
        """Reject unknown host names; IP addresses are accepted, since DNS rebinding does not apply to them."""
        if "host" not in headers:
            return
        try:
            name = (urlsplit(f"//{headers['host']}").hostname or "").rstrip(".")
        except ValueError:  # such as "[::1"
            name = ""
        if name not in {"localhost", *self._hosts} and not _is_address(name):
            raise ApiError(421, f"unknown host {name[:80]!r}; allow it with --allow-host {name[:80]}")

    def _check_origin(self, headers: Headers) -> None:
        """Reject requests that a page of another origin sends through its visitor's browser."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        place = (origin or "").partition("://")[2].lower()
        own = origin is None or place == headers.get("host", "").lower() or place in self._hosts
        if site not in ("same-origin", "none") and (site is not None or not own):
            shown = repr((origin or site or "")[:80])
            raise ApiError(
                403, f"request from another origin, {shown}; use this server's own page, or start it with a token"
            )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
