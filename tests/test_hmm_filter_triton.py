"""The Triton kernels of hmm_filter against NumPy in float64.

Without a GPU they are interpreted, their sm_80 PTX is executed, and they are compiled for every
architecture that is shipped; with one, the value tests also run on it.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from bwt.reference.hmm_filter import hmm_filter as reference_filter

pytest.importorskip("triton", reason="Triton is not installed")

from triton_aot import Compiler, Interpreter, call_on_gpu, execute  # noqa: E402

MODULE = "bwt.kernels.hmm_filter"
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
OUTPUTS = ("filtered", "predicted", "log_likelihood")
PARAMETERS = ("initial", "transition", "emission")
OWN = (True, True, True)
SHARED = (False, False, False)


class Case(NamedTuple):
    path: str
    B: int
    T: int
    S: int
    V: int
    own: tuple[bool, bool, bool] = OWN

    @property
    def name(self):
        owner = {OWN: "own", SHARED: "shared"}.get(self.own, "mixed")
        return f"{self.path}-B{self.B}-T{self.T}-S{self.S}-V{self.V}-{owner}"


def cases(*listed):
    return pytest.mark.parametrize("case", listed, ids=lambda case: case.name)


def draw(mode, case, *, integers=torch.int64, missing=0.2, ragged=True):
    """(observations, parameters by name, lengths); the first sequence has all steps and the last
    of several has none."""
    _, B, T, S, V, own = case
    generator = torch.Generator().manual_seed(B + T + S + V)
    y = torch.randint(0, V, (B, T), generator=generator)
    y[torch.rand((B, T), generator=generator) < missing] = -1
    lengths = None
    if ragged:
        lengths = torch.randint(1, T + 1, (B,), generator=generator)
        lengths[-1:], lengths[:1] = 0, T
    shapes = {"initial": (S,), "transition": (S, S), "emission": (S, V)}
    parameters = {}
    for (name, shape), each in zip(shapes.items(), own, strict=True):
        x = torch.empty((B, *shape) if each else shape, dtype=torch.float64)
        x.exponential_(generator=generator)
        parameters[name] = (x / x.sum(-1, keepdim=True)).to(DTYPES[mode])
    return y.to(integers), parameters, lengths


def draw_gradients(mode, case, incoming=OUTPUTS):
    _, B, T, S, _, _ = case
    generator = torch.Generator().manual_seed(B * T * S)
    shapes = {"filtered": (B, T, S), "predicted": (B, T, S), "log_likelihood": (B,)}
    gradients = {
        name: torch.randn(shape, generator=generator).to(DTYPES[mode])
        for name, shape in shapes.items()
    }
    return {name: x if name in incoming else None for name, x in gradients.items()}


def plain_filter(y, initial, transition, emission, lengths):
    """The recursion; parameters [..., B, S], [..., B, S, S], [..., B, S, V] may be complex."""
    (B, T), S = y.shape, initial.shape[-1]
    shape = np.broadcast_shapes(
        (B,), initial.shape[:-1], transition.shape[:-2], emission.shape[:-2]
    )
    emission = np.broadcast_to(emission, (*shape, *emission.shape[-2:]))
    each, states = np.arange(B)[:, None], np.arange(S)[None, :]
    kind = np.result_type(initial, transition, emission)
    filtered, predicted = (np.zeros((*shape, T, S), kind) for _ in range(2))
    log_likelihood = np.zeros(shape, kind)
    p = np.broadcast_to(initial, (*shape, S)).astype(kind)
    for t in range(T):
        now = np.ones(B, bool) if lengths is None else t < lengths
        column = emission[..., each, states, np.maximum(y[:, t], 0)[:, None]]
        u = p * np.where((y[:, t] < 0)[:, None], 1.0, column)
        c = u.sum(-1)
        possible = c.real != 0
        f = np.where(possible[..., None], u / np.where(possible, c, 1.0)[..., None], 0)
        predicted[..., t, :] = np.where(now[:, None], p, 0)
        filtered[..., t, :] = np.where(now[:, None], f, 0)
        log_likelihood += np.where(now & possible, np.log(np.where(possible, c, 1.0)), 0)
        log_likelihood = np.where(now & ~possible, -np.inf, log_likelihood)
        p = np.einsum("...i,...ij->...j", f, transition)
    return filtered, predicted, log_likelihood


def batched(parameters):
    """[B or 1, ...] in float64."""
    dims = {"initial": 1, "transition": 2, "emission": 2}
    return {n: (x if x.ndim > dims[n] else x[None]).double().numpy() for n, x in parameters.items()}


def expect(y, parameters, lengths):
    return reference_filter(y, **parameters, lengths=lengths)._asdict()


def slopes(y, parameters, lengths, gradients, directions):
    """The derivative of sum(gradients * outputs) along `directions` [K, size of a parameter] of
    each parameter, [B or 1, K]: by a step so small that its square is nothing, along i."""
    lengths = None if lengths is None else lengths.numpy()
    g = {n: None if x is None else x.double().numpy() for n, x in gradients.items()}
    arrays, step, found = batched(parameters), 1e-100, {}
    for name, d in directions.items():
        d = d.reshape(-1, 1, *arrays[name].shape[1:])
        moved = arrays | {name: arrays[name] + 1j * step * d}
        outputs = dict(zip(OUTPUTS, plain_filter(y.numpy(), **moved, lengths=lengths), strict=True))
        possible = np.isfinite(outputs["log_likelihood"].real)
        total = np.zeros(possible.shape)  # [K, B]
        for output, value in outputs.items():
            if g[output] is not None:
                terms = g[output] * value.imag / step
                total += np.where(possible, terms.reshape(*total.shape, -1).sum(-1), 0)
        own = parameters[name].ndim == arrays[name].ndim
        found[name] = total.T if own else total.sum(1)[None]
    return found


def draw_directions(parameters):
    """All entries one by one where they are few, else some random mixtures."""
    found = {}
    for name, x in batched(parameters).items():
        size = x[0].size
        rng = np.random.default_rng(size)
        found[name] = np.eye(size) if size <= 128 else rng.standard_normal((3, size))
    return found


def compute(call, case, y, parameters, lengths, gradients):
    inputs = (y, *parameters.values(), lengths)
    outputs = call("hmm_filter_forward", *inputs, path=case.path)
    found = dict(zip(OUTPUTS, outputs, strict=True))
    grads = call("hmm_filter_backward", *gradients.values(), *inputs, *outputs, path=case.path)
    return found, dict(zip(PARAMETERS, grads, strict=True))


def assert_agrees(mode, case, parameters, got, grads, expected, expected_slopes, directions):
    """A step has relative errors of at most (S + 6) eps, as nothing cancels, and they add up over
    the steps; adjoints have a few of them, relative to the largest entry, as there signs differ."""
    unit = torch.finfo(DTYPES[mode]).eps * (case.S + 6) * max(case.T, 1)
    for name, target in expected.items():
        actual = got[name].double().numpy()
        assert actual.shape == target.shape and got[name].dtype == DTYPES[mode], name
        size = max(1.0, np.abs(target[np.isfinite(target)]).max(initial=0))
        np.testing.assert_allclose(actual, target, rtol=0, atol=unit * size, err_msg=name)
    for name in OUTPUTS[:2]:
        np.testing.assert_array_equal(got[name].numpy()[expected[name] == 0], 0, err_msg=name)
    for name, target in expected_slopes.items():
        actual = grads[name].double().numpy()
        assert actual.shape == parameters[name].shape and grads[name].dtype == DTYPES[mode], name
        assert np.isfinite(actual).all(), name
        actual = actual.reshape(target.shape[0], -1) @ directions[name].T
        size = max(1.0, np.abs(target).max(initial=0))
        np.testing.assert_allclose(actual, target, rtol=0, atol=4 * unit * size, err_msg=name)


def check(call, mode, case, incoming=OUTPUTS, change=None, **options):
    y, parameters, lengths = draw(mode, case, **options)
    if change is not None:
        change(y, parameters, lengths)
    gradients = draw_gradients(mode, case, incoming)
    got, grads = compute(call, case, y, parameters, lengths, gradients)
    directions = draw_directions(parameters)
    expected = expect(y, parameters, lengths)
    expected_slopes = slopes(y, parameters, lengths, gradients, directions)
    everything = (mode, case, parameters, got, grads, expected, expected_slopes, directions)
    assert_agrees(*everything)
    return everything


@pytest.fixture(scope="session")
def hmm_interpreter():
    worker = Interpreter()
    yield worker
    worker.close()


@pytest.fixture(params=["interpreted", pytest.param("gpu", marks=pytest.mark.gpu)])
def call(request):
    """Calls a launcher by name on CPU tensors and returns CPU tensors."""
    if request.param == "interpreted":
        worker = request.getfixturevalue("hmm_interpreter")
        return lambda function, *args, **options: worker.call(MODULE, function, *args, **options)
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return lambda function, *args, **options: call_on_gpu(MODULE, function, *args, **options)


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


@cases(*VALUES)
def test_values(call, case):
    check(call, "fp32", case)


@cases(*FEW, VALUES[5], VALUES[6], VALUES[11])
def test_values_in_double(call, case):
    check(call, "fp64", case)


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


@cases(Case("rows", 1, 150, 3, 3, SHARED), Case("chunks", 1, 150, 3, 3, SHARED))
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


EXECUTED = [
    ("fp32", Case("rows", 5, 3, 5, 6)),
    ("fp64", Case("rows", 9, 4, 3, 3, SHARED)),
    ("fp32", Case("rows", 3, 4, 16, 40, (True, False, False))),
    ("fp32", Case("rows", 2, 4, 20, 5)),
    ("fp32", Case("rows", 2, 3, 64, 5, SHARED)),
    ("fp32", Case("dot", 17, 3, 19, 4, SHARED)),
    ("fp64", Case("dot", 3, 3, 20, 4, SHARED)),
    ("fp32", Case("chunks", 1, 9, 5, 4, SHARED)),
    ("fp64", Case("chunks", 1, 8, 3, 4)),
]


ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
# A sample; `python -m bwt.kernels.aot --op hmm_filter` compiles every entry of the table.
# Registers and bytes of shared memory, the most of any NVIDIA architecture.
SHIPPED = {
    ("fp32", Case("rows", 64, 4096, 5, 5)): {"forward": (56, 128), "backward": (72, 1024)},
    ("fp32", Case("rows", 64, 4096, 128, 512)): {"forward": (115, 1024), "backward": (130, 1024)},
    ("fp64", Case("rows", 64, 4096, 16, 27, SHARED)): {
        "forward": (80, 256),
        "backward": (226, 4096),
    },
    ("fp32", Case("dot", 64, 4096, 64, 64, SHARED)): {
        "forward": (136, 5120),
        "backward": (128, 5120),
    },
    ("fp32", Case("chunks", 64, 4096, 5, 5)): {
        "forward_basis": (46, 128),
        "starts": (36, 0),
        "forward": (53, 128),
        "backward_basis": (57, 128),
        "ends": (32, 0),
        "backward": (75, 1024),
    },
}
ROWS, LARGE, DOUBLE, DOT, CHUNKS = SHIPPED
COMPILED = [(*form, arch) for form in (ROWS, DOT) for arch in ARCHITECTURES]
COMPILED += [(*DOUBLE, "sm_90"), (*LARGE, "sm_100"), (*CHUNKS, "sm_80"), (*CHUNKS, "gfx942")]


def form_ids(forms):
    return ["-".join((mode, case.name, *arch)) for mode, case, *arch in forms]


def example(mode, case):
    names = ("path", "batch", "steps", "states", "symbols", "own")
    return {"mode": mode} | dict(zip(names, case, strict=True))


@pytest.fixture(scope="session")
def hmm_compiler(tmp_path_factory):
    made = Compiler(tmp_path_factory.mktemp("hmm_aot"))
    for mode, case in EXECUTED:
        made.announce(MODULE, "sm_80", **example(mode, case))
    for mode, case, arch in COMPILED:
        made.announce(MODULE, arch, **example(mode, case))
    yield made
    made.close()


@pytest.fixture
def emulate(hmm_compiler, monkeypatch):
    """(call, stats by label): launchers whose kernels run as PTX."""
    from bwt.kernels import configs, hmm_filter

    stats = {}

    def run(self, device):
        stats[hmm_filter.label(self)] = execute(hmm_compiler.find(self), self)

    monkeypatch.setattr(configs.Launch, "run", run)
    return lambda name, *args, **options: getattr(hmm_filter, name)(*args, **options), stats


@pytest.mark.parametrize("mode,case", EXECUTED, ids=form_ids(EXECUTED))
def test_ptx(hmm_compiler, emulate, mode, case):
    call, stats = emulate
    records = hmm_compiler.get(MODULE, "sm_80", **example(mode, case))
    check(call, mode, case)
    assert stats.keys() == records.keys()
    for name, found in stats.items():
        assert records[name]["stack"] == records[name]["spills"] == 0, name
        # Below 16 states a step of a sequence is less than two sectors.
        worst = 1.1 if case.S >= 16 else 3
        assert found.store_sectors <= worst * found.store_sectors_ideal, name


@pytest.mark.parametrize("mode,case,arch", COMPILED, ids=form_ids(COMPILED))
def test_compiled_code_stays_within_budget(hmm_compiler, mode, case, arch):
    records = hmm_compiler.get(MODULE, arch, **example(mode, case))
    assert records.keys() == {f"hmm_filter_{name}" for name in SHIPPED[mode, case]}
    for name, (registers, shared) in SHIPPED[mode, case].items():
        record = records[f"hmm_filter_{name}"]
        assert record["stack"] == record["spills"] == 0, name
        if arch != "gfx942":
            assert record["registers"] <= registers and record["shared"] <= shared, name


def test_every_entry_is_compiled_ahead_of_time():
    from bwt.kernels import aot
    from bwt.kernels.configs import TABLE, lookup

    for arch in ARCHITECTURES:
        compiled = {
            (launch.name, name.split(".")[2], launch.arguments["SP"], repr(launch.config))
            for name, launch in aot.specialisations("hmm_filter", arch).items()
        }
        for op, kernel, dtype, size, _ in TABLE:
            if op == "hmm_filter":
                [config] = lookup(op, kernel, dtype, size, arch)
                name = f"hmm_filter_{kernel.removeprefix('rows_').removeprefix('dot_')}"
                assert (name, dtype, size, repr(config)) in compiled, (kernel, dtype, size)
