"""Runs the command line: `python -m idness` is `idness`."""

from idness.cli import run

run()
