from __future__ import annotations

import io
import time

from rich.console import Console

from idness.core.progress import show_progress


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
