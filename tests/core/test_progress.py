from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from idness.core.progress import rate, show_progress


def played(*, is_terminal: bool, quiet: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, highlight=False)
    with show_progress(quiet=quiet, console=console) as progress:
        progress.phase("network", 100)
        progress.status("loss [0.5]")
        for _ in range(4):
            progress.advance(10)
            if is_terminal and not quiet:
                time.sleep(0.02)  # a rate needs some time to have passed
                progress.bars.refresh()
        progress.note("a remark")
        progress.warn("[bold] is no markup here")
        progress.phase("scores", None)
        progress.advance(5)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_bars_are_drawn_on_a_terminal_and_notes_elsewhere() -> None:
    shown = played(is_terminal=True)
    assert all(text in shown for text in ("network", "40/100", "/s", "loss [0.5]"))
    assert played(is_terminal=False) == "a remark\nwarning: [bold] is no markup here\n"
    assert played(is_terminal=True, quiet=True) == ""


@pytest.mark.parametrize(
    ("speed", "words"),
    [(None, ""), (0.0, ""), (1234.5, "1,234/s"), (4.0, "4.0/s"), (0.25, "4 s each"), (0.97, "1.0/s")],
)
def test_rates_never_read_as_nothing(speed: float | None, words: str) -> None:
    assert rate(speed) == words
