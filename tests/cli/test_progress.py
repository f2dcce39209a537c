from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from idness.cli import terminal
from idness.cli.progress import shown


def played(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, quiet: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, highlight=False)
    monkeypatch.setattr(terminal, "stderr", lambda: console)
    with shown(quiet=quiet) as listener:
        listener.phase("network", 100)
        for _ in range(4):
            listener.advance(10)
            if is_terminal and not quiet:
                time.sleep(0.02)  # a rate needs some time to have passed
                listener.progress.refresh()
        listener.note("a remark")
        listener.warn("[bold] is no markup here")
        listener.phase("scores", 5)
        listener.advance(5)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_bars_with_rate_and_time_left_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = played(monkeypatch, is_terminal=True)
    assert "network" in text
    assert "40/100" in text
    assert "/s" in text


def test_remarks_only_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert played(monkeypatch, is_terminal=False) == "a remark\nwarning: [bold] is no markup here\n"


def test_quiet_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert played(monkeypatch, is_terminal=True, quiet=True) == ""
