"""The command line as `python -m idness`."""

from idness.cli import run

run()
