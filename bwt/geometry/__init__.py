"""Opening a trained model: diagnostics of its attention, its states, and what depends on them.

`examine(run)` fills geometry.json, `ablate(run)` adds what happens when parts are taken out.
"""

from bwt.geometry.examine import ablate, examine

__all__ = ["ablate", "examine"]
