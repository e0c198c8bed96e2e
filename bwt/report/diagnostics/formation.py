"""How a look-up comes about in training."""

from collections.abc import Callable

from bwt import paper
from bwt.records.geometry import Formation, FormationRow
from bwt.report import charts, words
from bwt.report.cards import Card
from bwt.report.charts import Series
from bwt.report.diagnostics.shown import Shown

FORMED = 0.5  # of the attention of a head
LEARNED = 0.5  # of the KL of a guess


def cards(section: Formation) -> list[Card]:
    rows = section.rows[1:] if section.rows[0].step == 0 else section.rows
    if not rows:
        return []
    return [
        Card(
            "formation",
            "How the look-up forms",
            _attention(rows),
            in_words(section),
            paper.NOTES["formation"],
        ),
        Card(
            "formation-bits",
            "What it is worth",
            _bits(rows),
            "Bits lost on questions about a key that was shown before, which can be looked up, and "
            "about new keys, where the values of others are to be ruled out.",
        ),
    ]


def _attention(rows: list[FormationRow]) -> str:
    steps = [row.step for row in rows]
    series = [
        Series("value to its key", steps, [max(row.binding) for row in rows], dots=True),
        Series(
            "question to its key", steps, [max(row.same_key) for row in rows], color=2, dots=True
        ),
        Series(
            "question to its answer", steps, [max(row.answer) for row in rows], color=1, dots=True
        ),
    ]
    return charts.lines(
        series,
        "Attention of the best head",
        "training step",
        "share of attention",
        log_x=True,
        zero=True,
    )


def _bits(rows: list[FormationRow]) -> str:
    steps = [row.step for row in rows]
    series = [Series("known key", steps, [row.kl_known.mean for row in rows], dots=True)]
    new = [row.kl_new.mean for row in rows if row.kl_new is not None]
    if len(new) == len(rows):
        series.append(Series("new key", steps, new, color=1, dots=True))
    return charts.lines(
        series, "KL of known and new keys", "training step", "KL / bits", log_x=True, log_y=True
    )


def first(rows: list[FormationRow], holds: Callable[[FormationRow], bool]) -> int | None:
    """The first step from which it holds to the end."""
    found = None
    for row in reversed(rows):
        if not holds(row):
            break
        found = row.step
    return found


def in_words(section: Formation) -> str:
    rows, last = section.rows, section.rows[-1]
    bound = first(rows, lambda row: max(row.binding) >= FORMED)
    matched = first(rows, lambda row: max(row.answer) >= FORMED)
    guess = section.uniform_known
    learned = first(rows, lambda row: row.kl_known.mean <= LEARNED * guess)

    def layer(shares: list[float]) -> str:
        return f"layer {shares.index(max(shares))}"

    text = [
        f"From a value to its own key the best head gives {words.percent(max(last.binding))} of "
        f"its attention ({layer(last.binding)}; looking everywhere alike "
        f"{words.percent(section.uniform_binding)})"
        + ("." if bound is None else f", more than half from step {bound} on."),
        f"From a question to where its key was shown before: "
        f"{words.percent(max(last.same_key))} ({layer(last.same_key)}); to the value that answers "
        f"it: {words.percent(max(last.answer))} ({layer(last.answer)}; alike "
        f"{words.percent(section.uniform_answer)})"
        + ("." if matched is None else f", more than half from step {matched} on."),
    ]
    if learned is None:
        text.append(
            "The look-up has not formed: a known key costs "
            f"{words.num(last.kl_known.mean)} bits, a guess {words.num(guess)}."
        )
    else:
        text.append(
            f"A known key costs less than half of what a guess does ({words.num(guess)} bits) from "
            f"step {learned} on."
        )
    return " ".join(text)


SHOWN = Shown(
    "formation",
    "Look-up",
    Formation,
    cards,
    sentences={"look-up": in_words},
    numbers={
        "binding_head": lambda section: max(section.rows[-1].binding),
        "same_key_head": lambda section: max(section.rows[-1].same_key),
        "answer_head": lambda section: max(section.rows[-1].answer),
        "kl_known": lambda section: section.rows[-1].kl_known.mean,
    },
    legend=(
        "attention of the best head from a value to its key, from a question to where its key was "
        "shown before and to the answer; bits lost on keys that were shown before"
    ),
)
