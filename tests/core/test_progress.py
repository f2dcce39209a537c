from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from idness.core.progress import rate, shown


def played(*, is_terminal: bool, quiet: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, highlight=False)
    with shown(quiet=quiet, console=console) as listener:
        listener.phase("network", 100)
        listener.status("loss [0.5]")
        for _ in range(4):
            listener.advance(10)
            if is_terminal and not quiet:
                time.sleep(0.02)  # a rate needs some time to have passed
                listener.progress.refresh()
        listener.note("a remark")
        listener.warn("[bold] is no markup here")
        listener.phase("scores", None)
        listener.advance(5)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_bars_with_rate_and_time_left_on_a_terminal() -> None:
    text = played(is_terminal=True)
    assert "network" in text
    assert "40/100" in text
    assert "/s" in text
    assert "loss [0.5]" in text


def test_remarks_only_where_there_is_no_terminal() -> None:
    assert played(is_terminal=False) == "a remark\nwarning: [bold] is no markup here\n"


def test_quiet_is_quiet() -> None:
    assert played(is_terminal=True, quiet=True) == ""


def test_nothing_is_drawn_before_the_first_phase() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with shown(console=console):
        pass
    assert console.file.getvalue().strip() == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("speed", "words"),
    [(None, ""), (0.0, ""), (1234.5, "1,234/s"), (4.0, "4.0/s"), (0.25, "4 s each"), (0.97, "1.0/s")],
)
def test_rates_never_read_as_nothing(speed: float | None, words: str) -> None:
    assert rate(speed) == words
