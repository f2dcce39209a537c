"""The paper's tables as data, each with its protocol, and where they contradict each other."""

from idness.paper.tables import PaperRow, PaperTable, Slip, find_slips, listed_slips, load, names

__all__ = ["PaperRow", "PaperTable", "Slip", "find_slips", "listed_slips", "load", "names"]
