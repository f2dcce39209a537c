"""`idness export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    guard: Annotated[Path, typer.Argument(help="The guard's folder.")],
    out: Annotated[Path, typer.Argument(help="The ONNX file to write.")],
    model: Annotated[str | None, typer.Option(help="The network, where the guard cannot find it by itself.")] = None,
    weights: Annotated[str | None, typer.Option(help="The network's weights, with --model.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that idness did not export.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Write a guard as one ONNX graph: images in; label, score, p_value and is_ood out."""
    from idness.cli.score import load
    from idness.guard.onnx import check_target

    check_target(out, force=force)
    written = load(guard, model, weights).to_onnx(out, force=force)
    if not quiet:
        print(
            f"wrote {written} ({written.stat().st_size / 1e6:.1f} MB): images -> label, score, p_value, is_ood; checked against torch"
        )
