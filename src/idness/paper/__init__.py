"""The paper's tables as data, each with its protocol, and what contradicts itself in them."""

from idness.paper.tables import PaperRow, PaperTable, Slip, find_slips, listed_slips, load, names

__all__ = ["PaperRow", "PaperTable", "Slip", "find_slips", "listed_slips", "load", "names"]
