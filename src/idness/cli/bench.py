"""`idness bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idness.cli.options import Device, Engine, Force, Layer, MultiLabel, Partial, Threads

if TYPE_CHECKING:
    from idness.benchmark.results import Report
    from idness.core.files import OutputFolder

OUT = Path("idness-results")


def bench(
    benchmark: Annotated[
        str, typer.Argument(help="A benchmark's name or TOML file; with --init the file to write.")
    ] = "",
    model: Annotated[
        str,
        typer.Option(help="torchvision:NAME, timm:NAME, file.py:function, a folder of idness train, or cifar6:base."),
    ] = "",
    weights: Annotated[Path | None, typer.Option(help="The network's weights: safetensors or a checkpoint.")] = None,
    layer: Layer = "",
    multi_label: MultiLabel = None,
    data: Annotated[Path | None, typer.Option(help="Folder at which the benchmark's relative paths begin.")] = None,
    out: Annotated[Path, typer.Option(help="Where results go.")] = OUT,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods to compare, as in 'ebo,scale(percentile=95),my_file.py:MyDetector'; all of one pass if not given."
        ),
    ] = "",
    precision: Annotated[str, typer.Option(help="fp32, bf16, or auto, which measures both.")] = "fp32",
    engine: Engine = "auto",
    threads: Threads = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images per forward pass; chosen by their size if not given.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Threads that decode images.")] = None,
    device: Device = "auto",
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps activations between runs.")] = None,
    fpr: Annotated[str, typer.Option(help="Positive side of the FPR in the tables: id or ood.")] = "id",
    seed: Annotated[int, typer.Option(help="Seed of the error bars.")] = 0,
    partial: Partial = False,
    any_accuracy: Annotated[
        bool, typer.Option("--any-accuracy", help="Continue even if accuracy is at chance level.")
    ] = False,
    init: Annotated[
        bool, typer.Option("--init", help="Write a commented benchmark file to start from, and stop.")
    ] = False,
    by_set: Annotated[
        bool, typer.Option("--by-set", help="Print every row, its options and its numbers by set.")
    ] = False,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no remarks.")] = False,
) -> None:
    """Compare every method on a network and a benchmark; without arguments on the embedded ones."""
    if init:
        _write_template(Path(benchmark or "benchmark.toml"))
        return
    from idness.cli.terminal import command_line
    from idness.core.method_text import split_methods
    from idness.core.progress import STARTING, shown
    from idness.data import embedded

    with shown(quiet=quiet) as listener:
        listener.phase(STARTING, None)
        from idness.benchmark.results import results_folder
        from idness.benchmark.runner import run
        from idness.benchmark.settings import Settings
        from idness.report.tables import fpr_name

        fpr_name(fpr)
        folder = results_folder(out, force=force)
        folder.check()
        settings = Settings(
            data=data,
            weights=weights,
            layer=layer or None,
            multi_label=multi_label,
            methods=split_methods(methods),
            precision=precision,
            engine=engine,
            threads=threads,
            batch_size=batch_size,
            workers=workers,
            cache=cache,
            device=device,
            seed=seed,
            partial=partial,
            any_accuracy=any_accuracy,
            command=command_line(),
        )
        report = run(benchmark or embedded.NAME, model or None, settings, listener)
    _finish(report, folder, fpr, by_set=by_set, as_json=as_json, quiet=quiet)


def _finish(report: Report, out: OutputFolder, fpr: str, *, by_set: bool, as_json: bool, quiet: bool) -> None:
    """Write the files, print the tables or JSON, and name what was written."""
    from idness.benchmark.results import DERIVED, RESULTS
    from idness.cli.terminal import stderr, stdout
    from idness.report import write_html
    from idness.report.tables import rich_table, terminal_tables, write_tables

    report.save(out)
    out.remove(DERIVED)  # those of an earlier run must not stay if the disk is full now
    files = [out.path / name for name in (RESULTS, *(report.files or ()))]
    written = [*files, *write_tables(report, out, fpr), write_html(out, report)]
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        console = stdout()
        for table in terminal_tables(report, console.width, fpr, sets=by_set):
            console.print(table.title, style="bold", markup=False)
            console.print(rich_table(table))
            console.print("\n".join([*table.notes, ""]), style="dim", markup=False)
        if report.answer is not None:
            console.print(report.answer.sentence, report.answer.cost, style="bold", markup=False)
    if not quiet:
        names = ", ".join(path.name for path in written)
        stderr().print(f"wrote {names} to {out}", markup=False, soft_wrap=True)


def _write_template(path: Path) -> None:
    from idness.benchmark.protocol import template
    from idness.cli.terminal import stderr
    from idness.core.errors import StoreError
    from idness.core.files import atomic_write

    if path.exists():
        raise StoreError(f"{path} exists; choose another name for the template")
    atomic_write(path, template())
    stderr().print(f"wrote {path}; edit it, then run: idness bench {path} --model ...", markup=False, soft_wrap=True)
