"""How a look-up forms: found where it is planted, and not where it is not."""

import itertools
import operator
from collections import Counter
from fractions import Fraction

import pytest
import torch
from helpers.planted import transformer
from torch import nn

from bwt import tasks
from bwt.geometry.formation import formation
from bwt.geometry.subject import Subject
from bwt.records.geometry import Skipped
from bwt.report.diagnostics.formation import in_words
from bwt.taps import Tapped

TASK = tasks.get("bijection", num_symbols=5, num_pairs=8, replacement=True)
KNOWN, NEW = operator.attrgetter("kl_known"), operator.attrgetter("kl_new")
RECALL = tasks.get("recall", num_pairs=4, num_keys=6, num_values=6, num_queries=2, filler=3)


class PlantedAttention(Tapped):
    """Values look at their keys, questions at the values of earlier pairs of the same key, as far
    as each is asked for; the rest of the attention goes to the position itself."""

    taps = ("weights",)

    def __init__(self, binding: bool, matching: bool):
        super().__init__()
        self.binding, self.matching = binding, matching

    def forward(self, tokens):
        B, T = tokens.shape
        weights = torch.zeros(B, 2, T, T)
        for b, t in itertools.product(range(B), range(T)):
            earlier = [s + 1 for s in range(0, t, 2) if t % 2 == 0 and tokens[b, s] == tokens[b, t]]
            if self.binding and t % 2:
                weights[b, 1, t, t - 1] = 1
            elif self.matching and earlier:
                weights[b, 1, t, earlier[-1]] = 1
            else:
                weights[b, 1, t, t] = 1
            weights[b, 0, t, t] = 1  # a head that does none of it
        self.tap("weights", weights)


class PlantedModel(nn.Module):
    """Right on known keys where it is asked to be, uniform elsewhere."""

    def __init__(self, binding: bool, matching: bool, right: bool):
        super().__init__()
        self.right = right
        self.blocks = nn.ModuleList([nn.Module()])
        self.blocks[0].attn = PlantedAttention(binding, matching)

    def forward(self, tokens, features=None, positions=None):
        self.blocks[0].attn(tokens)
        logits = torch.zeros(*tokens.shape, TASK.num_symbols)
        for b, t in itertools.product(range(len(tokens)), range(0, tokens.shape[1], 2)):
            earlier = [s for s in range(0, t, 2) if tokens[b, s] == tokens[b, t]]
            if self.right and earlier:
                logits[b, t, tokens[b, earlier[0] + 1] - TASK.num_symbols] = 30.0
        return logits


def formed(*models):
    subject = Subject.draw(TASK, models[-1], 16)
    return formation(subject, list(range(len(models))), lambda step: models[step], lambda: None)


def test_a_planted_look_up_is_found_when_it_forms():
    nothing = PlantedModel(False, False, False)
    bound = PlantedModel(True, False, False)
    found = formed(nothing, bound, PlantedModel(True, True, True))
    assert [row.binding for row in found.rows] == [[0.0], [1.0], [1.0]]
    assert [row.answer for row in found.rows] == [[0.0], [0.0], [1.0]]
    assert [row.same_key for row in found.rows] == [[0.0], [0.0], [0.0]]
    known, new = (
        [getattr(row, name).mean for row in found.rows] for name in ("kl_known", "kl_new")
    )
    uniform = torch.tensor(5.0).log2().item()
    assert known == pytest.approx([uniform, uniform, 0.0], abs=1e-6)
    assert new[0] == new[2] < uniform
    text = in_words(found)
    assert "more than half from step 1 on" in text and "more than half from step 2 on" in text
    assert "less than half of what a guess does (2.32 bits) from step 2 on" in text


def test_what_has_not_formed_is_said_not_to():
    found = formed(*[PlantedModel(False, False, False)] * 3)
    assert "has not formed" in in_words(found) and "more than half" not in in_words(found)


def test_attention_alike_is_what_uniform_says():
    model = transformer(TASK, layers=2)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:32] = 0
    subject = Subject.draw(TASK, model, 32)
    found = formation(subject, [0], lambda step: model, lambda: None)
    assert found.rows[0].binding == pytest.approx([found.uniform_binding] * 2, rel=1e-5)
    assert found.rows[0].answer == pytest.approx([found.uniform_answer] * 2, rel=1e-5)


def test_recall_has_pairs_and_no_new_keys():
    subject = Subject.draw(RECALL, transformer(RECALL), 16)
    found = formation(subject, [0], lambda step: subject.model, lambda: None)
    assert found.rows[0].kl_new is None and 0 < found.uniform_answer < 1
    values, keys = RECALL.pairs
    assert bool((subject.batch.tokens[:, keys] < 5 + RECALL.num_keys).all())
    assert bool((subject.batch.tokens[:, values] >= 5 + RECALL.num_keys).all())


@pytest.mark.parametrize(
    "task,reason",
    [
        (tasks.get("hmm", length=4), "no pairs"),
        (tasks.get("bijection", num_symbols=4, replacement=False), "no key is asked about"),
    ],
    ids=["hmm", "distinct"],
)
def test_tasks_without_a_look_up_are_skipped(task, reason):
    model = transformer(task)
    found = formation(Subject.draw(task, model, 16), [0], lambda step: model, lambda: None)
    assert isinstance(found, Skipped) and reason in found.reason


def answers(keys_of_sequences):
    """How often each value answers the last of 3 keys, over all bijections of 3 symbols and these
    keys: by the values that were seen, by whether this key was, and by both."""
    seen_values, seen_key, both = ({} for _ in range(3))
    for pi in itertools.permutations(range(3)):
        for keys in keys_of_sequences:
            values = frozenset(pi[k] for k in keys[:2])
            known = keys[2] in keys[:2]
            for table, what in ((seen_values, values), (seen_key, known), (both, (values, known))):
                table.setdefault(what, Counter())[pi[keys[2]]] += 1
    return seen_values, seen_key, both


def uniform(counts):
    return all(Fraction(counts[v], counts.total()) == Fraction(1, 3) for v in range(3))


REPEATED = list(itertools.product(range(3), repeat=3))
DISTINCT = list(itertools.permutations(range(3)))


def test_half_of_a_look_up_is_worth_nothing():
    """Why it takes so long: who knows which values were seen, or whether this key was, and not
    both, can do no better than guess."""
    seen_values, seen_key, both = answers(REPEATED)
    assert all(map(uniform, seen_values.values())) and all(map(uniform, seen_key.values()))
    assert not any(map(uniform, both.values()))


@pytest.mark.parametrize("share", [1, 9])
def test_distinct_keys_mixed_in_make_the_values_worth_something(share):
    """What helps it on its way: with any share of distinct keys, however small, a value that was
    not seen is more likely than one that was."""
    seen_values, seen_key, _ = answers(REPEATED + share * DISTINCT)
    assert all(map(uniform, seen_key.values()))
    for values, counts in seen_values.items():
        if len(values) == 2:
            (new,) = set(range(3)) - values
            assert all(counts[new] > counts[v] for v in values)
