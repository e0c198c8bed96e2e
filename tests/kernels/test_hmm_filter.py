"""The Triton kernels of hmm_filter, interpreted (and on a GPU, if there is one), against NumPy in
float64."""

import numpy as np
import pytest
import torch
from helpers import tiers
from helpers.hmm_exact import exact, slopes
from helpers.hmm_triton import (
    DTYPES,
    OUTPUTS,
    OWN,
    PARAMETERS,
    SHARED,
    Case,
    assert_agrees,
    cases,
    check,
    check_halves,
    compute,
    draw,
    draw_gradients,
)
from helpers.hmm_triton import (
    MODULE as MODULE,  # read by the fixture `call`
)
from helpers.tolerances import hmm_relative_error

pytest.importorskip("triton", reason="Triton is not installed")


FEW = [
    Case("rows", 5, 7, 5, 6),
    Case("chunks", 2, 20, 3, 4, SHARED),
    Case("dot", 3, 5, 19, 4, SHARED),
]
VALUES = [
    *FEW,
    Case("rows", 1, 1, 1, 1, SHARED),
    Case("rows", 11, 6, 2, 3, SHARED),
    Case("rows", 9, 5, 4, 33),
    Case("rows", 3, 9, 13, 40, SHARED),
    Case("rows", 3, 6, 16, 17, (False, True, False)),
    Case("rows", 2, 5, 8, 5, (True, False, True)),
    Case("rows", 2, 6, 33, 7),
    Case("rows", 2, 4, 100, 9, SHARED),
    Case("dot", 17, 4, 64, 5, (True, False, True)),
    Case("dot", 2, 3, 128, 50, SHARED),
    Case("chunks", 1, 19, 2, 40, OWN),
    Case("chunks", 1, 13, 9, 3, (False, True, False)),
]


@cases(*tiers.mark("slow", VALUES, (0, 1, 2, 7)))
def test_values(call, case):
    check(call, "fp32", case)


@cases(*FEW, VALUES[5], VALUES[6], VALUES[11])
def test_values_in_double(call, case):
    check(call, "fp64", case)


@cases(*FEW, VALUES[11])
def test_halves(call, case):
    """bf16 is among what is executed as PTX: the interpreter does not round it."""
    check_halves(call, "fp16", case)


@cases(*FEW)
def test_narrow_symbols_all_steps(call, case):
    check(call, "fp32", case, integers=torch.int32, ragged=False, missing=0.0)


@cases(*FEW)
@pytest.mark.parametrize("incoming", OUTPUTS)
def test_one_incoming_gradient(call, case, incoming):
    check(call, "fp64", case, incoming=(incoming,))


@cases(*FEW)
@pytest.mark.parametrize("step", [0, 3])
def test_impossible_observation(call, case, step):
    """The symbol V - 1 cannot be emitted; the first sequence emits it."""

    def forbid(y, parameters, lengths):
        y[y == case.V - 1] = 0
        y[0, step] = case.V - 1
        parameters["emission"][..., case.V - 1] = 0

    _, _, _, got, grads, *_ = check(call, "fp32", case, change=forbid)
    assert got["log_likelihood"][0] == float("-inf") and got["log_likelihood"][1:].isfinite().all()
    assert (got["filtered"][0, step:] == 0).all() and (got["predicted"][0, step + 1 :] == 0).all()
    assert (got["predicted"][0, step] > 0).any()
    if case.own == OWN:
        assert all((g[0] == 0).all() and (g[1:-1] != 0).any() for g in grads.values())


@cases(*FEW)
@pytest.mark.parametrize("mode,tiny", [("fp32", 2.0**-100), ("fp64", 2.0**-1000)])
def test_tiny_probabilities(call, mode, tiny, case):
    """Products of two of them are below the smallest number, but only the likelihood changes."""
    y, parameters, lengths = draw(mode, case)
    before = call("hmm_filter_forward", y, *parameters.values(), lengths, path=case.path)
    for name in ("initial", "emission"):
        parameters[name] *= tiny
    after = call("hmm_filter_forward", y, *parameters.values(), lengths, path=case.path)
    # Pieces are weighted by exponentials of likelihoods, which are that large.
    allowed = torch.finfo(torch.float64).eps * float(after[2].abs().max())
    allowed = max(allowed, torch.finfo(DTYPES[mode]).eps)
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=allowed)
    seen = ((y >= 0) & (torch.arange(case.T) < lengths[:, None])).sum(1) + (lengths > 0)
    shifted = before[2] + seen * np.log(tiny)
    torch.testing.assert_close(after[2], shifted.to(after[2].dtype), rtol=1e-6, atol=0)


@cases(Case("rows", 1, 60, 3, 3, SHARED), Case("chunks", 1, 60, 3, 3, SHARED))
def test_near_deterministic(call, case):
    """Each state is left at a rate of 1e-20 and shown with errors as rare; the observations walk
    through the states all the same, so that all but one path has no weight in float32."""

    def sharpen(y, parameters, lengths):
        eye = torch.eye(3)
        for name in ("transition", "emission"):
            parameters[name].copy_(torch.where(eye > 0, 1.0, 1e-20))
        y[0] = torch.arange(case.T) // 5 % 3

    check(call, "fp32", case, change=sharpen, incoming=(), ragged=False)


@cases(*FEW)
def test_symbols_out_of_range_are_impossible(call, case):
    y, parameters, _ = draw("fp32", case, ragged=False)
    y[0, 2] = case.V
    got, grads = compute(call, case, y, parameters, None, draw_gradients("fp32", case))
    assert got["log_likelihood"][0] == float("-inf")
    assert all(x.isfinite().all() for x in (*grads.values(), got["filtered"], got["predicted"]))


@cases(*FEW)
def test_strided_inputs(call, case):
    y, parameters, lengths = draw("fp32", case)
    gradients = draw_gradients("fp32", case)

    def strided(x):
        return None if x is None else torch.stack((x, x), -1)[..., 0]

    plain = compute(call, case, y, parameters, lengths, gradients)
    parameters, gradients = (
        {n: strided(x) for n, x in group.items()} for group in (parameters, gradients)
    )
    other = compute(call, case, strided(y), parameters, strided(lengths), gradients)
    torch.testing.assert_close(plain, other, rtol=0, atol=0)


@pytest.mark.parametrize("B,T", [(0, 3), (2, 0)])
def test_empty(call, B, T):
    case = Case("rows", B, T, 3, 4, SHARED)
    y, parameters, _ = draw("fp32", case, ragged=False)
    got, grads = compute(call, case, y, parameters, None, draw_gradients("fp32", case))
    assert got["filtered"].shape == (B, T, 3) and (got["log_likelihood"] == 0).all()
    assert all((grads[n] == 0).all() and grads[n].shape == parameters[n].shape for n in grads)


def test_no_incoming_gradient(call):
    _, _, _, _, grads, *_ = check(call, "fp32", FEW[0], incoming=())
    assert all((g == 0).all() for g in grads.values())


@pytest.mark.parametrize("name", OUTPUTS + PARAMETERS)
def test_a_perturbed_number_is_noticed(call, name):
    """Of a whole result, one number off by a hundredth of its size."""
    everything = check(call, "fp32", FEW[0])
    result = (everything[3] | everything[4])[name]
    result.view(-1)[result.abs().argmax()] *= 1.01
    with pytest.raises(AssertionError, match=name):
        assert_agrees(*everything)


def test_plan():
    from bwt.kernels.hmm_filter import plan

    assert plan(4096, 50, 5, True) == ("rows", 50, 1)
    assert plan(4096, 50, 64, False).path == "dot"
    assert plan(4096, 50, 64, True).path == "rows"
    assert plan(64, 50, 64, False).path == "rows"
    long = plan(1, 100_000, 5, False)
    assert long.path == "chunks" and (long.chunks - 1) * long.chunk < 100_000
    assert long.chunks * long.chunk >= 100_000
    assert plan(1, 100_000, 17, False).path == "rows"
    assert plan(4096, 100_000, 5, False).path == "rows"
    for sizes in ((1, 9, 17, True, "dot"), (1, 9, 17, True, "chunks"), (1, 9, 129, True, None)):
        with pytest.raises(ValueError, match="hmm_filter"):
            plan(*sizes)


def test_pieces_are_chosen_where_they_are_done_first():
    from bwt.kernels.hmm_filter.paths import CHAIN, LAUNCHES, SCAN, best_pieces, cycles

    # A small batch waits for chains: two launches and a scan have to be worth it.
    assert cycles(64, 50, 5, 1, 108) == 50 * CHAIN
    assert cycles(16, 512, 5, 8, 108) == 2 * 64 * CHAIN + 8 * SCAN + LAUNCHES
    assert [best_pieces(64, T, 5, 108) for T in (1, 2, 50, 128, 512)] == [1, 1, 1, 8, 16]
    # What pieces add to a full GPU, it has to do: on a smaller one sooner.
    assert [best_pieces(B, 512, 5, 108) for B in (1, 64, 256, 4096)] == [16, 16, 8, 1]
    assert [best_pieces(64, 512, 5, processors) for processors in (1, 16, 108)] == [1, 8, 16]
    # More states make more rows of a piece.
    assert [best_pieces(64, 2048, S, 108) for S in (2, 8, 16)] == [32, 16, 16]
    for T in (2048, 100_000):
        chosen = best_pieces(1, T, 5, 108)
        costs = {n: cycles(1, T, 5, n, 108) for n in (1, chosen // 2, chosen, 2 * chosen)}
        assert min(costs, key=costs.get) == chosen
    # Who insists on pieces has the best number of them, and short sequences at least two.
    assert best_pieces(64, 2, 5, 108, insist=True) == 2


def sharp_coins(S, small):
    """S coins of which one was chosen for good. The second is all but excluded by eleven
    observations, and then proved by two; symbol 2 is missing from all."""
    emission = torch.full((S, 3), 0.5)
    emission[:, 2] = 0
    emission[0] = torch.tensor([1.0, 0.0, 0.0])
    emission[1] = torch.tensor([small, 1 - small, 0.0])
    emission[2:] = torch.tensor([1.0, 0.0, 0.0])
    y = torch.tensor([0] * 11 + [1] * 2)
    return y, torch.full((S,), 1 / S), torch.eye(S), emission


RARE = [Case("rows", 2, 13, 3, 3, SHARED), Case("chunks", 2, 13, 3, 3, SHARED)]
RARE += [Case("dot", 2, 13, 17, 3, SHARED)]


def assert_exact(case, got, y, parameters, b):
    want = exact(y[b].numpy(), *(x.double().numpy() for x in parameters))
    dtype = parameters[0].dtype
    bound = hmm_relative_error(dtype, case.S, case.T)
    tiny = torch.finfo(dtype).tiny
    for name, found in zip(OUTPUTS, got, strict=True):
        expected = getattr(want, name)
        np.testing.assert_allclose(
            found[b].double(), expected, rtol=bound, atol=bound * tiny, err_msg=name
        )


@cases(*RARE)
@pytest.mark.parametrize("mode,small", [("fp32", 2.0**-14), ("fp64", 2.0**-100)])
def test_unlikely_is_not_impossible(call, mode, small, case):
    y, *parameters = sharp_coins(case.S, small)
    parameters = [x.to(DTYPES[mode]) for x in parameters]
    y = torch.stack((y, torch.where(torch.arange(13) == 12, 2, y)))  # the second is impossible
    got = call("hmm_filter_forward", y, *parameters, None, path=case.path)
    assert got[2][0].isfinite() and got[2][1].isneginf()
    for b in range(2):
        assert_exact(case, got, y, parameters, b)


@cases(RARE[0])
def test_unlikely_sequences_have_no_more_steps_than_observations(call, case):
    y, *parameters = sharp_coins(case.S, 2.0**-14)
    y = torch.stack((y, y))
    got, expected = (
        call("hmm_filter_forward", y, *parameters, torch.tensor(lengths), path=case.path)
        for lengths in ([99, -3], [case.T, 0])
    )
    assert_exact(case, got, y, parameters, 0)
    assert all(
        torch.equal(found[1], wanted[1]) for found, wanted in zip(got, expected, strict=True)
    )


@pytest.mark.parametrize("incoming", ["log_likelihood", "all"])
def test_gradients_of_unlikely_sequences(interpreter, incoming):
    """Beside an ordinary sequence, through the op's own implementation."""
    case = RARE[0]
    y, *parameters = sharp_coins(case.S, 2.0**-14)
    y = torch.stack((y, torch.zeros_like(y)))
    gradients = draw_gradients("fp32", case)
    if incoming != "all":
        gradients |= {"filtered": None, "predicted": None}
    saved = interpreter.call("bwt.ops.hmm_filter", "_triton", y, *parameters, None)
    inputs = (*gradients.values(), y, *parameters, None, *saved)
    found = interpreter.call("bwt.ops.hmm_filter", "_triton_backward", *inputs)
    zero = np.zeros((case.T, case.S))
    totals = [0, 0, 0]
    for b in range(2):
        weights = [zero if x is None else x[b].double().numpy() for x in gradients.values()]
        plain = [x.double().numpy() for x in parameters]
        terms = zip(totals, slopes(y[b].numpy(), *plain, weights), strict=True)
        totals = [total + term for total, term in terms]
    for name, gradient, (value, size) in zip(PARAMETERS, found, totals, strict=True):
        largest = torch.finfo(torch.float32).max
        value = np.clip(value, -largest, largest)
        bound = hmm_relative_error(torch.float32, case.S, case.T) * size
        error = np.abs(gradient.double().numpy() - value)
        assert (error <= bound + torch.finfo(torch.float32).tiny).all(), (name, gradient, value)
