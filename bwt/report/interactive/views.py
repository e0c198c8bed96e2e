"""Places in the page that the script fills; without it they are not seen."""

from bwt.records.geometry import Geometry, Manifold
from bwt.report.cards import Card

STEPS = (
    "steps",
    "Step through a sequence",
    "Choose a sequence, a layer and a head, and move the step (arrow keys, too). Above, what has "
    "been read so far: the fuller a box, the more the head attends to it from the step that is "
    "asked. Below, the exact posterior beside the model's (heights are square roots, so that small "
    "ones are seen); ▲ is what was really the case.",
)
STATES = (
    "states",
    "Turn the states",
    "The same states in their first three principal components: drag, or use the arrow keys. Where "
    "colour by entropy and by step look alike, the two cannot be told apart by eye.",
)
TRAINING = (
    "training",
    "One sequence through training",
    "Choose a checkpoint: the exact posterior stays, the model's moves towards it. Total variation "
    "is half the sum of differences, 0 for the same distribution and 1 for disjoint ones.",
)
# chapter -> the view at its head
VIEWS = {"belief": STEPS, "states": STATES, "training": TRAINING}


def view(chapter: str, run: int, geometry: Geometry | None) -> Card | None:
    """The card of a chapter's view, if there is what it shows."""
    if chapter not in VIEWS or geometry is None or not _has(chapter, geometry):
        return None
    name, title, reading = VIEWS[chapter]
    place = f'<div class="view" data-view="{name}" data-run="{run}"></div>'
    return Card(f"view-{name}", title, place, reading, wide=True)


def _has(chapter: str, geometry: Geometry) -> bool:
    examples, manifold = geometry.examples, geometry.manifold
    if chapter == "belief":
        return examples is not None and examples.sequences[0].tokens is not None
    if chapter == "training":
        return examples is not None and len(examples.checkpoints or ()) > 1
    return isinstance(manifold, Manifold) and any(x.z is not None for x in manifold.points.values())
