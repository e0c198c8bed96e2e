"""The chapters of a run, in the order of the paper: belief accumulates, attention looks, states
encode, parts are removed, and how it came about. Each begins with what was found and its control.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bwt.report import diagnostics, glance, overview
from bwt.report.cards import Card
from bwt.report.reading import Run

CHAPTERS = {
    "belief": ("Belief accumulates", ("examples", "lengths")),
    "attention": ("Where attention looks", ("attention", "keys")),
    "states": ("What the states encode", ("manifold", "probes", "lens", "clusters")),
    "removal": ("What happens when parts are removed", ("ablation", "splice")),
    "training": ("How it came about in training", ("formation", "dissociation")),
}


@dataclass(frozen=True)
class Chapter:
    name: str
    title: str
    finding: str
    control: str
    cards: Sequence[Card]

    def lighter(self, largest: int) -> "Chapter":
        """Without pictures of more letters than that."""
        cards = [_lighter(card) if len(card.picture) > largest else card for card in self.cards]
        return replace(self, cards=cards)


def _lighter(card: Card) -> Card:
    text = "Left out to keep a page of many runs small; it is in the report of this run."
    return replace(card, picture=f'<p class="note">{text}</p>', wide=False)


def chapters(run: Run) -> list[Chapter]:
    """Those of which there is something to show."""
    found = [_chapter(run, name) for name in CHAPTERS]
    return [chapter for chapter in found if chapter.cards]


def _chapter(run: Run, name: str) -> Chapter:
    title, names = CHAPTERS[name]
    told = [] if run.geometry is None else diagnostics.told(run.geometry, names)
    cards = [card for shown, section in told for card in shown.cards(section)]
    finding = next((text for shown, x in told if (text := shown.finding(x))), "")
    control = next((text for shown, x in told if (text := shown.control(x))), "")
    if name == "belief":
        finding, control = overview.belief_finding(run), overview.belief_control(run)
        # The sequences come first: they are what all else is about.
        first = [card for card in cards if card.name == "examples"]
        later = [card for card in cards if card not in first]
        cards = [*first, *overview.belief_cards(run), *later]
    if name == "attention":
        cards = [*glance.cards(run.geometry), *cards]
    if name == "training":
        finding, control = overview.training_finding(run), overview.training_control(run)
        cards = [*overview.training_cards(run), *cards]
    return Chapter(name, title, finding, control, cards)
