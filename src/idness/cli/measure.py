"""Commands that measure: `bench`, `extract`, `compare`, `doctor` and `list`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from idness.cli import options as o
from idness.cli.terminal import open_console, print_note, print_tables


def bench(
    benchmark: Annotated[str, typer.Argument(help="Name or TOML file; with --init, the file to write.")] = "",
    model: o.OptionalModel = "",
    weights: o.Weights = None,
    layer: o.Layer = "",
    multi_label: o.MultiLabel = None,
    data: o.Data = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder.")] = Path("idness-results"),
    methods: Annotated[
        str, typer.Option(help="Such as 'ebo,scale(percentile=95),my.py:MyDetector'; default: all single-pass methods.")
    ] = "",
    precision: o.Precision = "fp32",
    engine: o.Engine = "auto",
    threads: o.Threads = None,
    batch_size: o.BatchSize = None,
    workers: o.Workers = None,
    device: o.Device = "auto",
    cache: o.Cache = None,
    fpr: o.Fpr = "id",
    seed: Annotated[int, typer.Option(help="Random seed for the intervals.")] = 0,
    partial: o.Partial = False,
    any_accuracy: o.AnyAccuracy = False,
    init: Annotated[bool, typer.Option("--init", help="Write a commented benchmark file and exit.")] = False,
    by_set: Annotated[bool, typer.Option("--by-set", help="Print all methods, and results by set.")] = False,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Compare all methods on a network and a benchmark, by default the embedded ones."""
    if init:
        from idness.benchmark.protocol import template
        from idness.core.errors import StoreError
        from idness.core.files import atomic_write

        path = Path(benchmark or "benchmark.toml")
        if path.exists():
            raise StoreError(f"{path} exists; choose another name for the template")
        atomic_write(path, template())
        print_note(f"wrote {path}; edit it, then run: idness bench {path} --model ...")
        return
    from idness.core.options import split_methods
    from idness.core.progress import show_progress

    with show_progress(quiet=quiet) as progress:
        from idness.benchmark.results import DERIVED, RESULTS, results_folder
        from idness.benchmark.runner import run
        from idness.data import embedded
        from idness.report import write_html
        from idness.report.tables import fpr_name, terminal_tables, write_tables

        fpr_name(fpr)
        folder = results_folder(out, force=force)
        folder.check()
        settings = o.settings_of(locals(), methods=split_methods(methods))
        report = run(benchmark or embedded.DEFAULT, model or None, settings, progress)
    report.save(folder)
    folder.remove(DERIVED)  # files of an earlier run must not remain if writing the new ones fails
    files = [folder.path / name for name in (RESULTS, *(report.files or ()))]
    page, written = write_html(folder, report), [*files, *write_tables(report, folder, fpr)]
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        console = open_console()
        print_tables(console, terminal_tables(report, console.width, fpr, sets=by_set))
        if report.answer is not None:
            console.print(report.answer.sentence, report.answer.cost, style="bold", markup=False)
    print_note(f"wrote {page} and, in the same folder, {', '.join(path.name for path in written)}", quiet=quiet)


def extract(
    model: o.Model,
    sets: Annotated[list[str], typer.Argument(help="A benchmark, or folders, lists, Parquet, WebDataset, .npz.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the store, for idness bench --cache.")],
    weights: o.Weights = None,
    layer: o.Layer = "",
    multi_label: o.MultiLabel = None,
    data: o.Data = None,
    partial: o.Partial = False,
    size: o.Size = None,
    mean: o.Mean = None,
    std: o.Std = None,
    class_names: o.ClassNames = None,
    precision: o.Precision = "fp32",
    engine: o.RayEngine = "auto",
    threads: o.Threads = None,
    address: o.Address = None,
    actors: o.Actors = None,
    gpus_per_actor: o.Gpus = 0.0,
    batch_size: o.BatchSize = None,
    workers: o.Workers = None,
    device: o.Device = "auto",
    resume: o.Resume = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Compute and store the activations of a network, for `idness bench --cache`."""
    from idness.core.progress import report_warnings, show_progress

    engine, pool = o.engine_and_pool(engine, address, actors, gpus_per_actor)
    with show_progress(quiet=quiet) as progress:
        from idness.activations.store import FeatureStore
        from idness.benchmark.extraction import prepare_extraction, run_extraction

        FeatureStore(out).check(resume=resume)
        settings = o.settings_of(locals(), cache=out)
        with report_warnings(progress.warn):
            job = prepare_extraction(o.model_options(locals()), sets, settings, progress=progress)
            if pool is None:
                found = run_extraction(job, progress)
            else:
                from idness.cluster import extract_on_ray

                found = extract_on_ray(job, pool, progress)
    if as_json:
        print(json.dumps([asdict(entry) for entry in found], indent=1))
    else:
        for entry in found:
            print(entry)
    print_note(f"wrote {out}; use it with idness bench --cache {out}", quiet=quiet)


def compare(
    results: Annotated[list[str], typer.Argument(help="Outputs of bench, or name=folder,folder for several seeds.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for compare.md and compare.html.")] = None,
    fpr: o.Fpr = "id",
    by_set: Annotated[bool, typer.Option("--by-set", help="Print results by set, not only by group.")] = False,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Compare results on the same images: differences from the first, with paired intervals."""
    from idness.benchmark.compare import compare as compared
    from idness.benchmark.compare import gather
    from idness.core.files import OutputFolder
    from idness.report import comparison
    from idness.report.tables import fpr_name

    metrics = ("auroc", fpr_name(fpr))
    folder = None if out is None else OutputFolder(out, force=force)
    if folder is not None:
        folder.check()
    found = compared(gather(results))
    if as_json:
        print(json.dumps(asdict(found), indent=1, allow_nan=False))
    else:
        console = open_console()
        print_tables(console, comparison.tables(found, metrics, ("group", "set") if by_set else ("group",)))
        console.print("\n".join(comparison.legend(found)), style="dim", markup=False)
    if folder is not None:
        written = comparison.write(found, folder)
        print_note(f"wrote {', '.join(path.name for path in written)} to {out}", quiet=quiet)


def doctor(
    model: o.Model,
    data: Annotated[str, typer.Option(help="In-distribution images; default: those of an embedded network.")] = "",
    ood: Annotated[str, typer.Option(help="OOD images to choose the method with.")] = "",
    train: Annotated[str, typer.Option(help="ID images to fit methods on; default: half of --data.")] = "",
    weights: o.Weights = None,
    size: o.Size = None,
    mean: o.Mean = None,
    std: o.Std = None,
    layer: o.Layer = "",
    class_names: o.ClassNames = None,
    multi_label: o.MultiLabel = None,
    device: o.Device = "auto",
    threads: o.Threads = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of images per set, evenly spaced.")] = 4000,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Recommend a method for a network, with the reasons, and report whether SCALE suits it."""
    from rich.text import Text

    from idness.core.progress import show_progress
    from idness.selection.recommend import diagnose

    with show_progress(quiet=quiet) as progress:
        options = o.model_options(locals())
        found = diagnose(options, data or None, ood or None, train=train or None, limit=limit, progress=progress)
    if as_json:
        print(json.dumps(found.to_dict(), indent=1))
        return
    console = open_console()
    console.print(found.why, style="bold", markup=False)
    if found.risk:
        console.print(found.risk, markup=False)
    console.print()
    signs = {True: ("+", "green"), False: ("-", "red"), None: ("·", "dim")}
    for finding in found.findings:
        console.print(Text.assemble(signs[finding.good], " ", (finding.name, "bold"), f": {finding.text}"))


def list_methods(as_json: o.Json = False) -> None:
    """List all methods: what each computes, its options and defaults, its requirements and its cost."""
    from idness.core.options import write_options
    from idness.detectors.registry import available, describe_method
    from idness.report.tables import Cell, Heading, Table

    if as_json:
        print(json.dumps([describe_method(name) for name in available()], indent=2))
        return
    rows = []
    for name, cls in available().items():
        options = write_options(cls().options()) or "no options"
        learns_from = "labelled" if cls.needs_labels else "yes" if cls.needs_train else "no"
        signed = "no" if cls.assumes_nonnegative else "yes"
        rows.append([*map(Cell, (name, f"{cls.summary()}\n{options}", learns_from, signed, cls.passes()))])
    titles = ("method", "description and options", "training\nimages", "negative\nfeatures\nallowed", "passes")
    note = (
        "Set options as in scale(percentile=95); bench searches options that are not set. Passes: forward + backward passes per"
        " image. All methods that need one forward pass share it; bench runs the others only if they are named."
    )
    print_tables(open_console(), [Table("Methods", [Heading(title, words=True) for title in titles], rows, [note])])
