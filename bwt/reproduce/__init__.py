"""The paper's tables and studies of our own, from runs: scale -> plan -> sweep -> results.json ->
tables -> page."""

from bwt.reproduce.reproduction import Reproduction
from bwt.reproduce.scales import SCALES

__all__ = ["SCALES", "Reproduction"]
