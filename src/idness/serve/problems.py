"""What a client is told when a request cannot be served: a status and one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Problem(Exception):  # noqa: N818 - RFC 9457 calls it a problem
    """Carries an answer other than 200 to the client.

    Args:
        status: the HTTP status.
        message: one line for a person.
        headers: more headers, such as Retry-After.
        more: what the answer says beside the line.
    """

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(" ".join(message.split()))
        self.status, self.headers, self.more = status, dict(headers or {}), dict(more or {})

    def body(self) -> bytes:
        """Give the answer's content."""
        return json.dumps({"error": str(self), **self.more}).encode()


def overloaded(what: str) -> Problem:
    """Make the answer for a client that must come again later."""
    return Problem(503, f"the server is busy ({what}); try again in a second", {"Retry-After": "1"})
