"""pytest runs with --import-mode=importlib, which does not put this folder on the path as running a
file of it does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
