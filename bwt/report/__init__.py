"""A run directory as a page for people: reads files only, runs no model."""

from bwt.report.page import report

__all__ = ["report"]
