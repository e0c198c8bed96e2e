"""What makes a page move: a script of our own and, for each run, the data that it shows.

Nothing is loaded from elsewhere, and a page without its script shows the same as figures.
"""

from bwt.report.interactive.data import script_data
from bwt.report.interactive.script import script
from bwt.report.interactive.views import VIEWS, view

__all__ = ["VIEWS", "script", "script_data", "view"]
