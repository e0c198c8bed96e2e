"""How well attention could tell its addresses apart."""

from bwt import paper
from bwt.records.estimates import Estimate, Estimates
from bwt.records.geometry import Keys
from bwt.report import words
from bwt.report.cards import Card, table
from bwt.report.diagnostics.shown import Shown


def cards(section: Keys) -> list[Card]:
    trained, untrained = section.trained, section.untrained
    columns = (trained.plain, untrained.plain, trained.centred, untrained.centred)
    rows = [
        [f"layer {i}", *(words.pm(_over_heads(heads)) for heads in layer)]
        for i, layer in enumerate(zip(*columns, strict=True))
    ]
    head = ["", "|cos|", "untrained", "|cos| centred", "untrained"]
    reading = in_words(section) + (
        f" Means over heads, with the largest standard error of a head; {section.addresses} "
        f"addresses, heads of size {section.head_size}."
    )
    picture = table(head, rows)
    return [Card("keys", "Are the keys orthogonal?", picture, reading, paper.NOTES["keys"])]


def _over_heads(heads: Estimates) -> Estimate:
    """Their mean, with the largest standard error of one."""
    return Estimate(words.mean(heads.mean), max(filter(words.known, heads.se), default=None))


def in_words(section: Keys) -> str:
    trained, untrained = (_over_heads(x.centred[0]) for x in (section.trained, section.untrained))
    if abs(trained.mean - untrained.mean) <= 3 * ((trained.se or 0) + (untrained.se or 0)):
        verdict = "no different from"
    elif trained.mean < untrained.mean:
        verdict = "nearer to orthogonal than"
    else:
        verdict = "LESS orthogonal than"
    return (
        f"In layer 0 the keys of different addresses are {verdict} those of the untrained model: "
        f"mean |cos| {words.num(trained.mean)} against {words.num(untrained.mean)}, with what all "
        "keys share taken away (independent Gaussian vectors of this size: "
        f"{words.num(section.gaussian)})."
    )


SHOWN = Shown(
    "keys",
    "Keys",
    Keys,
    cards,
    sentences={"keys": in_words},
    numbers={
        "key_cosine": lambda section: words.mean(section.trained.plain[0].mean),
        "key_cosine_untrained": lambda section: words.mean(section.untrained.plain[0].mean),
        "key_cosine_centred": lambda section: words.mean(section.trained.centred[0].mean),
    },
    legend=("mean |cos| of the keys of layer 0, the same before training and without the mean key"),
)
