"""The paper's tables as data, each with its protocol, and the paper's contradictions."""

from idness.paper.tables import PaperRow, PaperTable, listed_slips, load, names

__all__ = ["PaperRow", "PaperTable", "listed_slips", "load", "names"]
