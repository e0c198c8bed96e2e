"""The HMM task against sums over all hidden paths, from a plain reading of what it shows."""

import itertools
import math

import numpy as np
import pytest
import torch

from bwt import tasks
from bwt.tasks.hmm import draw_outcomes, draw_states, on_grid

SMALL = dict(num_states=3, num_symbols=2, length=4)


def draw(task, batch_size, seed=0):
    return task.sample(batch_size, generator=torch.Generator().manual_seed(seed))


def read_rows(batch, S, V, first=0):
    """Observations (symbol 0 is the token `first`), transition and emission of each sequence."""
    for tokens, features in zip(batch.tokens.numpy(), batch.features.numpy(), strict=True):
        rows = features.astype(np.float64)
        np.testing.assert_allclose(rows[S + V], 1 / S, rtol=1e-6)
        yield tokens - first, rows[:S], rows[S : S + V].T


def read_tokens(batch, S, V, least, first=0):
    """The same from [transition] S*S [emission] S*V [separator] ([observation] symbol)*."""
    levels = 101 - least
    for tokens in batch.tokens.numpy():
        assert tokens[0] == levels and tokens[1 + S * S] == levels + 1
        assert tokens[2 + S * S + S * V] == levels + 2
        transition = (tokens[1 : 1 + S * S].reshape(S, S) + least) / 100
        emission = (tokens[2 + S * S : 2 + S * S + S * V].reshape(S, V) + least) / 100
        body = tokens[3 + S * S + S * V :].reshape(-1, 2)
        assert (body[:, 0] == levels + 3).all()
        yield body[:, 1] - levels - 4 - first, transition, emission


def brute_force(observations, transition, emission, memory=None):
    """[T, S] p(z_t | last `memory` observations), [T, V] of the next symbol, over all paths."""
    S, steps = len(transition), len(observations)
    states = np.zeros((steps, S))
    for t in range(steps):
        first = 0 if memory is None else max(0, t + 1 - memory)
        for path in itertools.product(range(S), repeat=t + 1):
            weight = 1 / S
            for z, following in itertools.pairwise(path):
                weight *= transition[z, following]
            for s in range(first, t + 1):
                if observations[s] >= 0:  # not missing
                    weight *= emission[path[s], observations[s]]
            states[t, path[-1]] += weight
    states /= states.sum(-1, keepdims=True)
    return states, states @ transition @ emission


@pytest.mark.parametrize("predict", ["state", "symbol"])
@pytest.mark.parametrize("header", ["rows", "tokens"])
def test_posterior_and_floors(predict, header):
    task = tasks.get("hmm", **SMALL, predict=predict, header=header, floor=0.02, stickiness=0.3)
    batch = draw(task, 6)
    shown = read_rows(batch, 3, 2) if header == "rows" else read_tokens(batch, 3, 2, least=2)
    floors = task.floors(batch)
    assert list(floors) == ["memory-0", "memory-1", "memory-2"]  # those shorter than 4 steps
    for b, sequence in enumerate(shown):
        which = ("state", "symbol").index(predict)
        np.testing.assert_allclose(
            batch.posterior[b].numpy(), brute_force(*sequence)[which], atol=2e-6
        )
        for memory in (0, 1, 2):
            expected = brute_force(*sequence, memory=memory)[which]
            np.testing.assert_allclose(floors[f"memory-{memory}"][b].numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("predict", ["state", "symbol"])
@pytest.mark.parametrize("header", ["rows", "tokens"])
def test_posterior_and_floors_where_observations_are_missing(predict, header):
    task = tasks.get("hmm", **SMALL, predict=predict, header=header, stickiness=0.3, missing=0.5)
    batch = draw(task, 24)
    read = read_rows(batch, 3, 2, first=1) if header == "rows" else read_tokens(batch, 3, 2, 0, 1)
    which, floors = ("state", "symbol").index(predict), task.floors(batch)
    observations = task.shown(batch).numpy()
    assert (observations[:, 0] == -1).any() and (observations == -1).all(1).any()
    for b, sequence in enumerate(read):
        np.testing.assert_array_equal(observations[b], sequence[0])
        expected = brute_force(*sequence)[which]
        np.testing.assert_allclose(batch.posterior[b].numpy(), expected, atol=2e-6)
        for memory in (0, 1, 2):
            expected = brute_force(*sequence, memory=memory)[which]
            np.testing.assert_allclose(floors[f"memory-{memory}"][b].numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("header", ["rows", "tokens"])
def test_to_hide_observations_changes_nothing_else(header):
    plain, hiding = tasks.get("hmm", header=header), tasks.get("hmm", header=header, missing=0.3)
    assert hiding.vocab_size == plain.vocab_size + 1
    full, gaps = draw(plain, 2000), draw(hiding, 2000)
    assert torch.equal(full.targets, gaps.targets)
    for before, after in zip(plain.parameters(full), hiding.parameters(gaps), strict=True):
        assert torch.equal(torch.where(after == -1, before, after), before)
    hidden = hiding.shown(gaps) == -1
    assert hidden.double().mean().item() == pytest.approx(0.3, abs=0.01)
    at_each_step = hidden.double().mean(0)
    assert at_each_step.min() > 0.25 and at_each_step.max() < 0.35
    nothing = tasks.get("hmm", header=header, missing=1.0)
    batch = draw(nothing, 3)
    assert (nothing.shown(batch) == -1).all()
    torch.testing.assert_close(nothing.floors(batch)["memory-0"], batch.posterior)


@pytest.mark.parametrize("header", ["rows", "tokens"])
def test_a_missing_symbol_matches_no_emission(header):
    task = tasks.get("hmm", **SMALL, header=header, missing=0.5)
    batch = draw(task, 20)
    roles = task.roles(batch)
    matching = roles["matching"].sum(-1)
    each = 1 if header == "rows" else 3  # a column of E, or one probability of each state
    assert torch.equal(matching, torch.where(task.shown(batch) >= 0, each, 0))
    total = sum(group.int() for group in roles.values())
    visible = torch.arange(task.seq_len) <= batch.positions[:, None]
    assert torch.equal(total, visible.int().expand_as(total))


def test_what_a_short_memory_costs_when_states_are_sticky():
    """In bits, as found independently."""
    task = tasks.get("hmm", stickiness=0.95)
    batch = draw(task, 1000)
    exact = batch.posterior.double()
    costs = {}
    for name, floor in task.floors(batch).items():
        ratio = exact.clamp_min(1e-300).log2() - floor.double().clamp_min(1e-300).log2()
        costs[name] = float((exact * ratio).sum(-1).mean())
    for memory, cost in {1: 0.75, 2: 0.50, 5: 0.17, 10: 0.03}.items():
        assert costs[f"memory-{memory}"] == pytest.approx(cost, abs=0.03)


def test_longer_memory_is_nearer():
    task = tasks.get("hmm", stickiness=0.7)
    batch = draw(task, 500)
    floors = task.floors(batch)
    assert list(floors) == [f"memory-{k}" for k in (0, 1, 2, 5, 10)]
    distances = [float((floor - batch.posterior).abs().mean()) for floor in floors.values()]
    assert distances == sorted(distances, reverse=True) and distances[-1] > 1e-5
    for k in (1, 2, 5, 10):  # before it forgets anything, a filter is exact
        torch.testing.assert_close(floors[f"memory-{k}"][:, :k], batch.posterior[:, :k])


def test_sizes():
    rows = tasks.get("hmm")
    assert (rows.num_features, rows.feature_width, rows.vocab_size, rows.seq_len) == (11, 5, 5, 31)
    assert rows.positions.tolist() == list(range(11, 31))
    tokens = tasks.get("hmm", header="tokens", floor=0.05)  # the paper's code
    assert (tokens.num_features, tokens.vocab_size, tokens.seq_len) == (0, 105, 93)
    assert tokens.positions.tolist() == list(range(54, 93, 2))
    assert tasks.get("hmm", num_symbols=7, predict="symbol").num_outcomes == 7
    assert tasks.get("hmm", num_symbols=7).num_outcomes == 5


def test_rows_are_flat_dirichlet():
    """An entry of Dirichlet(1, ..., 1) over n outcomes is Beta(1, n - 1)."""
    from scipy.stats import kstest  # takes a second to load

    task = tasks.get("hmm", num_states=4, num_symbols=6)
    _, _, transition, emission = task.parameters(draw(task, 4000))
    for rows, n in ((transition, 4), (emission, 6)):
        torch.testing.assert_close(rows.sum(-1), torch.ones(4000, 4))
        for outcome in range(n):
            assert kstest(rows[:, 0, outcome].numpy(), "beta", (1, n - 1)).pvalue > 1e-3


@pytest.mark.parametrize("header", ["rows", "tokens"])
def test_floor_and_stickiness(header):
    task = tasks.get("hmm", floor=0.1, stickiness=0.5, header=header)
    _, _, transition, emission = task.parameters(draw(task, 4000))
    for rows in (transition, emission):
        assert rows.min() >= 0.1 - 1e-6
        torch.testing.assert_close(rows.sum(-1), torch.ones(4000, 5))
    sticky = tasks.get("hmm", stickiness=0.7, header=header)
    _, _, transition, _ = sticky.parameters(draw(sticky, 4000))
    stay = transition.diagonal(dim1=1, dim2=2)
    assert stay.min() >= 0.69 and stay.mean() == pytest.approx(0.7 + 0.3 / 5, abs=0.005)


def test_extremes_of_the_options():
    still = draw(tasks.get("hmm", stickiness=1.0), 50)
    assert (still.targets == still.targets[:, :1]).all()
    flat = tasks.get("hmm", floor=0.2)  # nothing can be learned from a symbol
    torch.testing.assert_close(draw(flat, 5).posterior, torch.full((5, 20, 5), 0.2))


def test_on_grid():
    generator = torch.Generator().manual_seed(0)
    rows = torch.empty(2000, 7, dtype=torch.float64).exponential_(generator=generator)
    rows = 0.03 + rows / rows.sum(-1, keepdim=True) * (1 - 7 * 0.03)
    rounded = on_grid(rows, 3).double() * 100
    units = rounded.round()
    torch.testing.assert_close(rounded, units, atol=1e-4, rtol=0)
    assert (units.sum(-1) == 100).all() and units.min() >= 3
    assert (units - rows * 100).abs().max() < 1
    exact = torch.tensor([[0.29, 0.57, 0.14], [1.0, 0.0, 0.0], [0.335, 0.335, 0.33]]).double()
    assert (on_grid(exact, 0)[:2] * 100).round().tolist() == [[29, 57, 14], [100, 0, 0]]
    assert sorted((on_grid(exact, 0)[2] * 100).round().tolist()) == [33, 33, 34]


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 13])
def test_paths_by_doubling_equal_a_walk(steps):
    generator = torch.Generator().manual_seed(0)
    transition = torch.rand(20, 4, 4, generator=generator)
    transition = transition / transition.sum(-1, keepdim=True)
    noise = torch.rand(20, steps, generator=generator, dtype=torch.float64)
    states = draw_states(transition, noise)
    for b in range(20):
        at = int(noise[b, 0] * 4)
        for t in range(steps):
            if t > 0:
                total = np.cumsum(transition[b, at].double().numpy())
                at = int(np.searchsorted(total[:-1], float(noise[b, t]) * total[-1], side="right"))
            assert states[b, t] == at


def test_impossible_outcomes_are_never_drawn():
    rows = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0]).expand(3, 5)
    largest = 1 - 2.0**-53
    noise = torch.tensor([0.0, 0.3 / 1.0000001, largest], dtype=torch.float64)
    assert draw_outcomes(rows, noise).tolist() == [1, 1, 3]


def test_hypothesis_bits_by_counting():
    """Rows of 3 entries from {0.2, 0.21, ...}: all (a, b, c) with sum 100 and each >= 20."""
    task = tasks.get("hmm", num_states=2, num_symbols=3, floor=0.2)
    emission = sum(100 - a - b >= 20 for a in range(20, 101) for b in range(20, 101))
    transition = sum(100 - a >= 20 for a in range(20, 101))
    assert task.hypothesis_bits == pytest.approx(2 * math.log2(emission * transition))
    assert tasks.get("hmm").hypothesis_bits > 133  # the paper: more than 1e40


def test_rows_that_are_not_shown_are_asked_for():
    task = tasks.get("hmm", num_states=2, num_symbols=2, length=3)
    batch = task.sample(2, generator=torch.Generator().manual_seed(0), posterior=False)
    with pytest.raises(ValueError, match="task hmm: the batch has no features"):
        task.posterior(batch._replace(features=None))
    with pytest.raises(ValueError, match="sampled without its posterior"):
        batch.exact  # noqa: B018
