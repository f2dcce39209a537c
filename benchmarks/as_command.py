"""Lets NumPy sort as it does in the command, wherever this is imported before NumPy is."""

from idness.core.processor import sort_fast

sort_fast()
