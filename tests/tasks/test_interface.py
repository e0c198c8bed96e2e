"""What all tasks share: options, shapes, reproducibility, calibration."""

import dataclasses

import pytest
import torch
from helpers.calibration import p_value

from bwt import tasks
from bwt.tasks import Bijection, Task

CASES = [
    ("bijection", dict(num_symbols=6, replacement=False)),
    ("bijection", dict(num_symbols=6, num_pairs=6, replacement=False)),
    ("bijection", dict(num_symbols=5, num_pairs=8, replacement=True)),
    ("bijection", dict(num_symbols=5, replacement=False, noise=0.3)),
    ("bijection", dict(num_symbols=4, num_pairs=9, replacement=True, noise=0.2)),
    ("hmm", dict(num_states=3, num_symbols=4, length=6)),
    ("hmm", dict(num_states=4, num_symbols=3, length=6, predict="symbol")),
    ("hmm", dict(num_states=3, num_symbols=2, length=7, stickiness=0.8, floor=0.05)),
    ("hmm", dict(num_states=3, num_symbols=4, length=5, header="tokens")),
    ("hmm", dict(length=4, header="tokens", floor=0.05, predict="symbol", stickiness=0.4)),
    ("hmm", dict(num_states=3, num_symbols=4, length=6, missing=0.4)),
    ("hmm", dict(num_states=3, num_symbols=4, length=5, header="tokens", missing=0.4)),
    ("recall", dict(num_pairs=5, num_keys=9, num_values=11, num_queries=3, filler=4)),
    ("recall", dict(num_pairs=4, num_keys=8, num_values=8, num_queries=4, filler=0, unseen=0.5)),
]

# Pairs of two noiseless bijections contradict each other.
MIXABLE = [case for case in CASES if case[0] != "bijection" or "noise" in case[1]]


def case_id(value):
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items())


all_tasks = pytest.mark.parametrize("name,options", CASES, ids=case_id)


def draw(task, batch_size, seed=0, **arguments):
    generator = torch.Generator().manual_seed(seed)
    return task.sample(batch_size, generator=generator, **arguments)


@all_tasks
def test_shapes(name, options):
    task = tasks.get(name, **options)
    batch = draw(task, 7)
    F, W, P = task.num_features, task.feature_width, len(task.positions)
    assert batch.tokens.shape == (7, task.seq_len - F) and batch.tokens.dtype == torch.int64
    assert batch.tokens.min() >= 0 and batch.tokens.max() < task.vocab_size
    if F:
        assert batch.features.shape == (7, F, W) and batch.features.dtype == torch.float32
    else:
        assert batch.features is None and W == 0
    assert torch.equal(batch.positions, task.positions)
    assert batch.positions.min() >= F and batch.positions.max() < task.seq_len
    assert batch.targets.shape == (7, P) and batch.targets.dtype == torch.int64
    assert batch.posterior.shape == (7, P, task.num_outcomes)
    assert batch.posterior.dtype == torch.float32
    for prediction in (batch.posterior, *task.floors(batch).values()):
        assert prediction.shape == batch.posterior.shape
        torch.testing.assert_close(prediction.sum(-1), torch.ones(7, P))


@all_tasks
def test_targets_are_draws_from_the_posterior(name, options):
    batch = draw(tasks.get(name, **options), 40_000, seed=1)
    assert p_value(batch.posterior, batch.targets) > 1e-3


@all_tasks
def test_calibration_test_sees_a_wrong_posterior(name, options):
    """Without this the test above might pass for anything."""
    batch = draw(tasks.get(name, **options), 40_000, seed=1)
    flattened = 0.8 * batch.posterior + 0.2 / batch.posterior.shape[-1]
    assert p_value(flattened, batch.targets) < 1e-6


@all_tasks
def test_reproducible_from_the_generator(name, options):
    task = tasks.get(name, **options)
    one, same, other = draw(task, 32), draw(task, 32), draw(task, 32, seed=1)
    for field in ("tokens", "features", "targets", "posterior"):
        a, b = getattr(one, field), getattr(same, field)
        assert (a is None and b is None) or torch.equal(a, b)
    assert not torch.equal(one.tokens, other.tokens)


@all_tasks
def test_posterior_can_be_left_out(name, options):
    task = tasks.get(name, **options)
    full, lean = draw(task, 32), draw(task, 32, posterior=False)
    assert lean.posterior is None
    assert torch.equal(full.tokens, lean.tokens) and torch.equal(full.targets, lean.targets)
    assert torch.equal(task.posterior(lean), full.posterior)


@all_tasks
def test_fresh_each_call(name, options):
    task, generator = tasks.get(name, **options), torch.Generator().manual_seed(0)
    first, second = (task.sample(32, generator=generator) for _ in range(2))
    assert not torch.equal(first.tokens, second.tokens)


@pytest.mark.parametrize("name,options", MIXABLE, ids=case_id)
def test_posterior_uses_the_past_only(name, options):
    """Tokens after a supervised position, replaced by those of another sequence, change nothing."""
    task = tasks.get(name, **options)
    batch = draw(task, 64)
    step = len(task.positions) // 2
    cut = int(task.positions[step]) + 1 - task.num_features
    tokens = batch.tokens.clone()
    tokens[:, cut:] = tokens[:, cut:].roll(1, 0)
    changed = task.posterior(batch._replace(tokens=tokens))
    torch.testing.assert_close(changed[:, : step + 1], batch.posterior[:, : step + 1])


@all_tasks
def test_states_its_hypothesis_space(name, options):
    task = tasks.get(name, **options)
    assert task.hypothesis_bits > 0
    assert f"2^{task.hypothesis_bits:.1f}" in task.describe() and "\n" not in task.describe()


@pytest.mark.parametrize(
    "name,length,seq_len", [("bijection", 5, 9), ("hmm", 50, 61), ("recall", 20, 112)]
)
def test_with_length(name, length, seq_len):
    task = tasks.get(name)
    longer = task.with_length(length)
    assert longer.seq_len == seq_len and longer.vocab_size == task.vocab_size
    assert draw(longer, 3).tokens.shape == (3, seq_len - longer.num_features)
    assert longer.with_length(getattr(task, task.length_option)) == task


@pytest.mark.parametrize("name", tasks.TASKS)
def test_options_are_fields_with_help(name):
    task = tasks.get(name)
    for field in dataclasses.fields(task):
        assert field.metadata["help"]
    assert tasks.get(name, **task.options()) == task
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.seed = 1


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("chess", {}, "no task 'chess'; choose one of bijection, hmm, recall"),
        ("recall", {"size": 1}, "no option 'size'; its options are num_pairs, num_keys"),
        ("bijection", {"num_pairs": 21, "replacement": False}, "use fewer pairs or replacement"),
        ("bijection", {"num_symbols": 1}, "num_symbols must be at least 2, got 1"),
        ("bijection", {"num_symbols": 2.0}, "num_symbols must be int, got 2.0"),
        ("bijection", {"num_symbols": True}, "num_symbols must be int, got True"),
        ("bijection", {"num_pairs": 0}, "num_pairs must be at least 1, got 0"),
        ("bijection", {"replacement": 1}, "replacement must be bool, got 1"),
        ("bijection", {"noise": float("nan")}, "noise must be a number, got nan"),
        ("bijection", {"noise": 1.5}, "noise must be at most 1, got 1.5"),
        ("bijection", {"noise": 0.1, "num_symbols": 30}, "num_symbols must be at most 24"),
        ("hmm", {"header": "rows,"}, "header must be one of rows, tokens, got 'rows,'"),
        ("hmm", {"predict": None}, "predict must be str, got None"),
        ("hmm", {"floor": 0.3}, "floor must be at most 1/5 for rows of 5, got 0.3"),
        ("hmm", {"floor": 0.025, "header": "tokens"}, "floor must be a multiple of 0.01"),
        ("hmm", {"stickiness": -0.1}, "stickiness must be at least 0, got -0.1"),
        ("hmm", {"missing": 1.1}, "missing must be at most 1, got 1.1"),
        ("recall", {"num_queries": 17}, "num_queries must be at most num_pairs=16"),
        ("recall", {"num_keys": 15}, "num_keys must be at least num_pairs = 16, got 15"),
        ("recall", {"num_values": 19, "unseen": 0.1}, "plus num_queries (unseen > 0) = 20, got 19"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(ValueError) as error:
        tasks.get(name, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_generator_on_another_device():
    with pytest.raises(ValueError, match=r"make it by torch.Generator\('meta'\)"):
        draw(tasks.get("bijection"), 2, device="meta")


class Plain(Bijection):
    """A task that says nothing of its positions, as somebody's own may not."""

    meanings, groups, addresses = Task.meanings, Task.groups, Task.addresses


def test_a_task_that_says_nothing_of_its_positions_has_the_asked_one_and_the_rest():
    task = Plain(num_symbols=4, replacement=False)
    batch = task.sample(3, generator=torch.Generator().manual_seed(0))
    roles = task.roles(batch)
    assert set(roles) == set(task.meanings) == {"self", "irrelevant"}
    assert roles["self"].sum(-1).unique().tolist() == [1]
    assert torch.equal(roles["irrelevant"].sum(-1)[0], batch.positions)
    assert torch.equal(task.shown(batch), batch.tokens[:, ::2])
    (group,) = task.addresses
    assert torch.equal(group.at, batch.positions)
    different = task.different_addresses(batch, group)
    assert different.sum().item() == 3 * 3 * 2  # keys do not repeat
