"""Commands about guards: `calibrate`, `score`, `export` and `serve`."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idness.cli import options as o
from idness.cli.terminal import open_console, print_note

if TYPE_CHECKING:
    from idness.data import ImageSet

FORMS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".parquet": "parquet"}
"""The output format for each file extension of --out."""
KEY = "IDNESS_API_KEY"
SERVED = 20_000
"""Number of images that the choice of the engine assumes; more would delay the start by minutes."""


def calibrate(
    model: o.Model = "",
    data: Annotated[str, typer.Option(help="In-distribution images that the network was not trained on.")] = "",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the guard.")] = Path("guard"),
    weights: o.Weights = None,
    method: Annotated[str, typer.Option(help="A method such as 'scale(percentile=85)', or auto.")] = "auto",
    ood: Annotated[str | None, typer.Option(help="OOD images, to choose the method and measure detection.")] = None,
    train: Annotated[str | None, typer.Option(help="Images or activations to fit on; default: half of --data.")] = None,
    recall: Annotated[list[float] | None, typer.Option(help="Fraction of ID images to accept; repeatable.")] = None,
    false_alarm: Annotated[list[float] | None, typer.Option(help="Fraction to flag, instead of --recall.")] = None,
    per_class: Annotated[bool, typer.Option("--per-class", help="Use one threshold per predicted class.")] = False,
    confidence: Annotated[
        float | None, typer.Option(help="Probability that this guard, not just the average guard, keeps its rate.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print how many calibration images are needed.")] = False,
    fdr: Annotated[float, typer.Option(help="With --plan: false discovery rate of idness score --fdr.")] = 0.1,
    screen: Annotated[int, typer.Option(min=1, help="With --plan: number of images screened together.")] = 1000,
    ood_fraction: Annotated[float, typer.Option(help="With --plan: fraction of them expected to be OOD.")] = 0.01,
    size: o.Size = None,
    mean: o.Mean = None,
    std: o.Std = None,
    layer: o.Layer = "",
    class_names: o.ClassNames = None,
    multi_label: o.MultiLabel = None,
    any_accuracy: o.AnyAccuracy = False,
    engine: o.Engine = "auto",
    threads: o.Threads = None,
    device: o.Device = "auto",
    bundle: Annotated[bool, typer.Option(help="Store a copy of the weights in the guard's folder.")] = True,
    thumbnails: Annotated[bool, typer.Option(help="Store thumbnails of up to 240 images for the web page.")] = True,
    force: o.Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the guard's description as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only cautions and errors.")] = False,
) -> None:
    """Calibrate a guard for your network on a folder of your images."""
    from idness.core.progress import show_progress

    if plan:
        from idness.guard import conformal

        for rate in conformal.wanted_recalls(recall, false_alarm):
            for promise, count in conformal.plan(rate, confidence, fdr, screen, ood_fraction):
                print(f"{count:>9,} calibration images  {promise}")
        return
    if not model or not data:
        raise typer.BadParameter("MODEL and --data are needed, except with --plan")
    with show_progress(quiet=quiet) as progress:
        from idness.data import embedded
        from idness.guard.calibrate import CAUTION
        from idness.guard.conformal import wanted_recalls
        from idness.guard.guard import Guard
        from idness.guard.storage import MANIFEST, guard_folder
        from idness.selection.recommend import ENOUGH

        folder = guard_folder(out, force=force)
        folder.check()
        replaced = (out / MANIFEST).exists()
        notes: list[str] = []
        guard = Guard.for_images(
            o.model_options(locals()), data, wanted_recalls(recall, false_alarm), per_class=per_class, confidence=confidence, notes=notes,
            method=method, train=train, ood=ood, gallery=thumbnails, any_accuracy=any_accuracy, progress=progress,
        )  # fmt: skip
    guard.save(folder, bundle=bundle and not embedded.owns(model))
    for note in notes:
        if not quiet or note.startswith(CAUTION):  # cautions are never hidden
            print_note(f"· {note}")
    if as_json:
        print(json.dumps(guard.describe(), indent=2))
    elif not quiet:
        limit = guard.threshold()
        limits = f"{float(limit.min()):.4g}" + (f" to {float(limit.max()):.4g}, by class" if len(limit) > 1 else "")
        if guard.detection is not None:
            chose = "; they also chose the method" if method == "auto" and guard.detection.images >= ENOUGH else ""
            print(f"detection  {guard.detection}{chose}")
        print(f"method     {guard.detector.label()}")
        print(f"threshold  {limits} (images with a lower ID-ness are out-of-distribution)")
        print(f"guarantee  {guard.promise()}")
        print(f"wrote      {out}{', replacing the previous guard' if replaced else ''}")


def score(
    guard: Annotated[Path, typer.Argument(help="The guard's folder, or an .onnx file written by idness export.")],
    images: Annotated[list[str], typer.Argument(help="Files, folders, quoted patterns, or - for a list on stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per image.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if any image is OOD or unreadable.")] = False,
    recall: Annotated[float | None, typer.Option(help="Use this recall instead of the calibrated one.")] = None,
    false_alarm: Annotated[float | None, typer.Option(help="Use this false-alarm rate instead of a recall.")] = None,
    fdr: Annotated[float | None, typer.Option(help="Judge all images together at this false discovery rate.")] = None,
    model: o.GuardModel = None,
    weights: o.GuardWeights = None,
    engine: o.RayEngine = "auto",
    threads: o.Threads = None,
    device: o.Device = "auto",
    address: o.Address = None,
    actors: o.Actors = None,
    gpus_per_actor: o.Gpus = 0.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .csv, .json, .jsonl or .parquet file, or a folder for many images."),
    ] = None,
    resume: o.Resume = False,
    keep: Annotated[str, typer.Option(help="Columns or WebDataset fields to copy, such as a,b,__key__.")] = "",
    image_column: Annotated[str | None, typer.Option(help="Column (or array of an .npz file) with the images.")] = None,
    batch_size: o.BatchSize = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Score images: print the class, ID-ness, p-value and verdict of each."""
    from idness.core.progress import show_progress

    engine, pool = o.engine_and_pool(engine, address, actors, gpus_per_actor)
    form = _form(out, as_csv=as_csv, as_json=as_json)
    columns = [name.strip() for name in keep.split(",") if name.strip()]
    folder = out if not form else None  # of Parquet files; otherwise rows are printed or written to one file
    if folder is None and (pool is not None or resume):
        raise typer.BadParameter("--engine ray and --resume need a folder as --out")
    console = open_console()
    # Rows and progress share a terminal only if one console draws both.
    shared = console if folder is None and console.is_terminal else None
    hidden = quiet or bool(shared and form and out is None)
    with show_progress(quiet=hidden, console=shared) as progress, ExitStack() as opened:
        from idness.core.files import OutputFolder, locked
        from idness.core.text import shorten
        from idness.data.batches import limit_threads
        from idness.guard import score as scoring
        from idness.guard.drift import drift_warning

        limit_threads(threads)
        stream = opened.enter_context(scoring.row_stream(None if folder else out))
        if folder is not None:
            OutputFolder(folder).check(resume=resume)
        found = _opened(images, image_column, columns)  # fails before the network is loaded
        rates = {"recall": recall, "false_alarm": false_alarm}
        loaded = scoring.open_guard(guard, model, weights, engine=engine, images=len(found), device=device, **rates)
        if folder is None:
            progress.phase("images", len(found))
            records: Iterable[dict[str, Any]]
            records = scoring.score_images(loaded, found, columns, batch=batch_size, progress=progress)
            screened = fdr is not None
            records, short = (records, "") if fdr is None else scoring.screen(loaded, records, fdr)
            tally = (
                scoring.write_rows(records, stream, form, map(scoring.kept_name, columns), screened=screened)
                if form
                else scoring.print_rows(records, console, loaded.class_names or (), screened=screened)
            )
        else:
            table = scoring.VerdictTable(loaded, folder, found, batch_size, columns, fdr)
            with locked(folder):
                if pool is None:
                    tally = table.run(progress)
                else:
                    from idness.cluster import score_on_ray

                    tally = score_on_ray(table, guard, model, weights, pool, progress)
            short = table.shortfall
    if out is not None or not form:
        unread = f", {tally.unread:,} unreadable; the first: {shorten(tally.first, scoring.LONGEST)}"
        rate = "" if fdr is None else f" (on average at most {100 * fdr:g} % of them in-distribution)"
        print(f"{tally.ood:,} of {tally.images:,} images out-of-distribution{rate}{unread if tally.unread else ''}")
    print_note(f"wrote {out}", quiet=quiet or out is None)
    # With --fdr, some OOD images are expected; they are no sign of drift.
    drift = "" if loaded.groups is None or fdr is not None else drift_warning(loaded.groups, tally.seen)
    for warning in filter(None, (short, drift)):
        print_note(f"idness: warning: {warning}")
    if strict and (tally.ood or tally.unread):
        raise typer.Exit(1)


def _form(out: Path | None, *, as_csv: bool, as_json: bool) -> str:
    """Return the output format by the file extension, or else by the options; empty for a table in a folder."""
    if as_csv and as_json:
        raise typer.BadParameter("pass either --csv or --json")
    ending = "" if out is None else out.suffix.lower()
    form = FORMS.get(ending, "csv" if as_csv else "jsonl" if as_json else "")
    if not form and re.fullmatch(r"\.[a-z]{2,5}", ending) and out is not None and not out.is_dir():
        raise typer.BadParameter(f"--out ends in {ending}; use one of {', '.join(FORMS)}, or a folder")
    return form


def _opened(images: list[str], column: str | None, keep: list[str]) -> ImageSet:
    """Open the images, or the files listed on standard input, and check that the columns to keep exist."""
    from idness.core.errors import DataError
    from idness.data.open import open_images
    from idness.data.sets import FileSet
    from idness.guard.score import SHARD, kept_columns

    if images == ["-"]:
        if keep or column:
            raise typer.BadParameter("--keep and --image-column need the name of a table or tar file, not -")
        return FileSet(Path(), list(_listed()), "images")
    found = open_images(images, column)
    if len(found) == 0:
        raise DataError(f"{found.source}: must contain at least one image, got none; check the folder or file")
    kept_columns(found, keep, 0, min(SHARD, len(found)))
    return found


def _listed() -> Iterator[str]:
    """Yield the paths on standard input, one per line."""
    from idness.core.errors import DataError

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # file names need not be UTF-8
    number = 0
    for number, line in enumerate((line for line in sys.stdin if line.strip()), start=1):
        if "\0" in line:
            raise DataError(f"standard input: line {number} contains a NUL character; separate paths by line breaks")
        yield line.rstrip("\n")
    if number == 0:
        raise DataError("standard input: lists no images; write one path per line")


def export(
    guard: Annotated[Path, typer.Argument(help="The guard's folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The ONNX file to write.")],
    model: o.GuardModel = None,
    weights: o.GuardWeights = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that idness did not export.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Write a guard as one ONNX graph: images in; label, score, p_value and is_ood out."""
    from idness.guard.guard import Guard
    from idness.guard.onnx import check_target

    check_target(out, force=force)
    written = Guard.load(guard, model, weights=weights).to_onnx(out, force=force)
    if not quiet:
        size = f"{written.stat().st_size / 1e6:.1f} MB"
        print(f"wrote {written} ({size}): images -> label, score, p_value, is_ood; checked against torch")


def serve(
    guard: Annotated[Path, typer.Argument(help="The guard's folder, or the .onnx file that idness export wrote.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free one.", min=0, max=65535)] = 8000,
    model: o.GuardModel = None,
    weights: o.GuardWeights = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token that clients send as X-API-Key.")] = None,
    no_token: Annotated[bool, typer.Option("--no-token", help="Require no token, even on a public address.")] = False,
    allow_host: Annotated[list[str] | None, typer.Option(help="Additional host name to accept; repeatable.")] = None,
    engine: o.Engine = "auto",
    threads: o.Threads = None,
    device: o.Device = "auto",
    batch_size: Annotated[int, typer.Option(help="Maximum number of images per batch.", min=1)] = 16,
    max_body: Annotated[int, typer.Option(help="Maximum bytes per request.")] = 32_000_000,
    max_pixels: Annotated[int, typer.Option(help="Maximum pixels per image.")] = 25_000_000,
    max_request_pixels: Annotated[int, typer.Option(help="Maximum pixels of all images in a request.")] = 200_000_000,
    max_images: Annotated[int, typer.Option(help="Maximum images per request.")] = 64,
    max_queue: Annotated[int, typer.Option(help="Maximum waiting images; more are rejected with 503.")] = 512,
    body_timeout: Annotated[float, typer.Option(help="Maximum seconds to receive a request.")] = 20.0,
    timeout: Annotated[float, typer.Option(help="Maximum seconds to answer a request.")] = 60.0,
) -> None:
    """Serve a guard over HTTP, with a web page.

    Clients must send the token from --token-file or the environment variable IDNESS_API_KEY. Without either, anyone on this
    machine can use the service.
    """
    from idness.core.errors import OptionError, needed
    from idness.data.batches import limit_threads
    from idness.guard.score import open_guard

    service = needed("idness.serve", "serve", "serve")
    middleware = needed("idness.serve.middleware", "serve", "serve")
    limits = service.Limits(
        body=max_body,
        pixels=max_pixels,
        request_pixels=max_request_pixels,
        images=max_images,
        queue=max_queue,
        body_seconds=body_timeout,
        answer_seconds=timeout,
    )
    limit_threads(threads)
    # Checked before the network is loaded.
    key, where = os.environ.get(KEY) or None, KEY
    if token_file is not None:
        try:
            key, where = token_file.read_text(encoding="ascii").strip(), "token_file="
        except (OSError, UnicodeError) as error:
            raise OptionError(
                f"serve: token_file= cannot be read ({error}); pass a file with one line of text"
            ) from error
    if key is not None:
        middleware.check_key(key, where)
    middleware.check_reach(host, key, no_token=no_token)
    console = open_console(stderr=True)

    def started(address: str) -> None:
        console.print(f"serving {guard} at {address} (API docs: {address}/docs); press Ctrl-C to stop", markup=False)

    service.serve(
        open_guard(guard, model, weights, engine=engine, images=SERVED, device=device), host=host, port=port, key=key, no_token=no_token,
        hosts=allow_host or (), limits=limits, batch=batch_size, name=guard.resolve().stem, started=started,
    )  # fmt: skip
    console.print("stopped; all accepted requests were answered")
