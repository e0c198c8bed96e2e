"""The paper's tables, from runs of our own: plan -> sweep -> results.json -> tables -> page."""

from bwt.reproduce.plan import SCALES, TABLES, Reproduction

__all__ = ["SCALES", "TABLES", "Reproduction"]
