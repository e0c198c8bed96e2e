"""attention on the CPU, against the NumPy float64 reference."""

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.attention_inputs import ALL, arrays, draw
from helpers.tolerances import attention_error
from hypothesis import given, settings
from hypothesis import strategies as st

from bwt import ops, reference

BACKENDS = ["native", "torch"]
DTYPES = [torch.float32, torch.float64]
GRADS = ("out", "lse", "weights", "entropy")


def assert_agrees(got, expected, bound, names=GRADS):
    for name in names:
        actual, target = getattr(got, name).detach().double().numpy(), getattr(expected, name)
        scale = max(1.0, np.abs(target).max(initial=0.0))
        np.testing.assert_allclose(actual, target, rtol=0, atol=bound * scale, err_msg=name)


CASES = [
    pytest.param(*shape, id="B{}-H{}-T{}-S{}-D{}".format(*shape))
    for shape in [
        (1, 1, 1, 1, 1),
        (2, 3, 1, 9, 16),
        (2, 2, 7, 7, 5),
        (1, 2, 39, 39, 32),
        (2, 1, 37, 93, 20),
        (1, 2, 93, 93, 64),
        (1, 1, 130, 150, 100),
        (1, 1, 33, 700, 128),
        (1, 1, 6, 17, 256),
    ]
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("B,H,T,S,D", CASES)
def test_forward(backend, dtype, causal, B, H, T, S, D):
    q, k, v = draw(B, H, T, S, D, dtype)
    got = ops.attention(q, k, v, causal=causal, capture=ALL, backend=backend)
    expected = reference.attention(*arrays([q, k, v]), causal=causal, capture=ALL)
    assert_agrees(got, expected, attention_error(dtype, S, D))
    hidden = expected.weights == 0
    assert not got.weights.numpy()[hidden].any()
    assert (got.entropy >= -attention_error(dtype, S, D)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("B,H,T,S,D", CASES)
def test_backward(dtype, causal, B, H, T, S, D):
    q, k, v = (x.requires_grad_() for x in draw(B, H, T, S, D, dtype))
    got = ops.attention(q, k, v, causal=causal, capture=ALL)
    grads = {name: torch.randn_like(getattr(got, name)) for name in GRADS}
    few_first = sorted(itertools.product([False, True], repeat=4), key=sum)[1:]
    # Each gradient alone, then all together; the pairs in between on small shapes.
    chosen = few_first if T * S < 400 else [*few_first[:4], few_first[-1]]
    for use in chosen:
        names = [name for name, used in zip(GRADS, use, strict=True) if used]
        outputs = [getattr(got, name) for name in names]
        gradients = torch.autograd.grad(
            outputs,
            (q, k, v),
            [grads[name] for name in names],
            retain_graph=True,
            materialize_grads=True,
        )
        expected = reference.attention_backward(
            *arrays([q, k, v]),
            causal=causal,
            **{f"grad_{name}": grads[name].double().numpy() for name in names},
        )
        for x, y in zip(gradients, expected, strict=True):
            scale = max(1.0, np.abs(y).max())
            bound = scale * attention_error(dtype, S, D)
            np.testing.assert_allclose(
                x.double().numpy(), y, rtol=0, atol=bound, err_msg=str(names)
            )


@pytest.mark.parametrize("capture", [(), ("weights",), ("entropy",), ALL])
def test_capture_changes_nothing_else(capture):
    q, k, v = (x.requires_grad_() for x in draw(2, 2, 11, 13, 8))
    plain = ops.attention(q, k, v)
    captured = ops.attention(q, k, v, capture=capture)
    assert torch.equal(plain.out, captured.out) and torch.equal(plain.lse, captured.lse)
    assert (captured.weights is None) == ("weights" not in capture)
    assert (captured.entropy is None) == ("entropy" not in capture)
    for x, y in zip(
        torch.autograd.grad(plain.out.square().sum(), (q, k, v)),
        torch.autograd.grad(captured.out.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [True, False])
def test_gradcheck(backend, causal):
    inputs = [x.requires_grad_() for x in draw(1, 2, 3, 5, 4)]
    for capture in [(), ("weights",), ("entropy",), ALL]:

        def outputs(q, k, v, capture=capture):
            got = ops.attention(q, k, v, causal=causal, capture=capture, backend=backend)
            return tuple(x for x in got if x is not None)

        assert torch.autograd.gradcheck(outputs, inputs)


def test_one_perturbed_weight_is_noticed():
    q, k, v = draw(1, 1, 9, 9, 16, torch.float32)
    got = ops.attention(q, k, v, capture=ALL)
    expected = reference.attention(*arrays([q, k, v]), capture=ALL)
    got.weights[0, 0, 5, 2] += 3e-5
    with pytest.raises(AssertionError):
        assert_agrees(got, expected, attention_error(torch.float32, 9, 16), ["weights"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_logits(dtype):
    """Scores of +-1e4 and beyond: no overflow, weights still exact, gradients finite."""
    q, k, v = (x.requires_grad_() for x in draw(1, 2, 20, 20, 16, dtype, size=100.0))
    got = ops.attention(q, k, v, scale=1.0, capture=ALL)
    expected = reference.attention(*arrays([q, k, v]), scale=1.0, capture=ALL)
    # A score of 1e5 is itself rounded to eps * 1e5, and a weight carries that as a factor.
    bound = 4e5 * torch.finfo(dtype).eps
    assert_agrees(got, expected, bound, ["weights", "entropy"])
    sum(x.sum() for x in got).backward()
    assert all(torch.isfinite(x).all() for x in (*got, q.grad, k.grad, v.grad))


def test_equal_scores_give_uniform_weights():
    x = torch.zeros(1, 2, 8, 4)
    got = ops.attention(x, x, x, capture=ALL)
    count = torch.arange(1.0, 9.0)
    torch.testing.assert_close(got.entropy[0, 0], count.log2())
    torch.testing.assert_close(got.lse[0, 0], count.log())


def fused_projection(B, H, T, D, dtype):
    qkv = torch.randn(B, T, 3, H, D, dtype=dtype, requires_grad=True)
    return qkv, [x.transpose(1, 2) for x in qkv.unbind(2)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_projection_needs_no_copy(dtype):
    qkv, (q, k, v) = fused_projection(2, 3, 21, 16, dtype)
    got = ops.attention(q, k, v, capture=ALL)
    assert_agrees(
        got,
        reference.attention(*arrays([q, k, v]), capture=ALL),
        attention_error(dtype, 21, 16),
    )
    assert got.out.transpose(1, 2).is_contiguous()  # merging heads is a view
    got.out.square().sum().backward()
    expected = reference.attention_backward(
        *arrays([q, k, v]), grad_out=2 * got.out.detach().double().numpy()
    )
    for index, target in enumerate(expected):
        actual = qkv.grad[:, :, index].transpose(1, 2).double().numpy()
        bound = attention_error(dtype, 21, 16) * max(1.0, np.abs(target).max())
        np.testing.assert_allclose(actual, target, rtol=0, atol=bound)


LAYOUTS = ["as drawn", "time first", "offset", "last strided", "expanded"]


@settings(deadline=None, max_examples=50)
@given(
    batch=st.integers(0, 3),
    heads=st.integers(1, 3),
    queries=st.integers(1, 20),
    extra=st.integers(0, 20),
    size=st.integers(1, 40),
    causal=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
)
def test_any_shape_and_layout(batch, heads, queries, extra, size, causal, dtype, layouts):
    drawn = draw(batch, heads, queries, queries + extra, size, dtype)
    inputs = [lay_out(x, name).requires_grad_() for x, name in zip(drawn, layouts, strict=True)]
    got = ops.attention(*inputs, causal=causal, capture=ALL)
    expected = reference.attention(*arrays(inputs), causal=causal, capture=ALL)
    bound = attention_error(dtype, queries + extra, size)
    assert_agrees(got, expected, bound)
    gradients = torch.autograd.grad(got.out.sum() + got.entropy.sum(), inputs)
    targets = reference.attention_backward(
        *arrays(inputs),
        grad_out=np.ones(got.out.shape),
        grad_entropy=np.ones(got.entropy.shape),
        causal=causal,
    )
    for x, y in zip(gradients, targets, strict=True):
        scale = max(1.0, np.abs(y).max(initial=0.0))
        np.testing.assert_allclose(x.double().numpy(), y, rtol=0, atol=4 * bound * scale)


def lay_out(x, layout):
    if layout == "time first":
        return x.transpose(1, 2).contiguous().transpose(1, 2).detach()
    if layout == "offset":
        padded = torch.full([n + 1 for n in x.shape], torch.nan, dtype=x.dtype)
        padded[1:, 1:, 1:, 1:] = x
        return padded[1:, 1:, 1:, 1:].detach()
    if layout == "last strided":
        return x.transpose(2, 3).contiguous().transpose(2, 3).detach()
    if layout == "expanded":
        return x[:, :1].expand(x.shape).detach()
    return x


def test_result_does_not_depend_on_threads():
    inputs = [x.requires_grad_() for x in draw(5, 3, 40, 40, 16, torch.float32)]
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            got = ops.attention(*inputs, capture=ALL)
            results.append((*got, *torch.autograd.grad(got.out.sum(), inputs)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_opcheck(weights, entropy):
    inputs = [x.requires_grad_() for x in draw(2, 2, 5, 6, 8, torch.float32)]
    arguments = (*inputs, True, 0.3, weights, entropy)
    torch.library.opcheck(torch.ops.bwt.attention.default, arguments)


def test_module_compiles_without_graph_break():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = torch.nn.Linear(16, 48)
            self.out = torch.nn.Linear(16, 16)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            got = ops.attention(q, k, v, capture=("weights",))
            return self.out(got.out.transpose(1, 2).flatten(2)), got.weights

    block = Block()
    x = torch.randn(2, 7, 16)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    results = []
    for module in (block, compiled):
        block.zero_grad()
        y, weights = module(x)
        (y.square().sum() + weights.square().sum()).backward()
        results.append((y, weights, block.qkv.weight.grad.clone()))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(dtype):
    q, k, v = (x.requires_grad_() for x in draw(2, 3, 5, 9, 8, dtype))
    expected = reference.attention(*arrays((q, k, v)), capture=("weights", "entropy"))
    for backend in (*BACKENDS, "reference"):
        tensors = (q, k, v) if backend in BACKENDS else [x.detach() for x in (q, k, v)]
        got = ops.attention(*tensors, capture=("weights", "entropy"), backend=backend)
        assert (got.out.dtype, got.weights.dtype) == (dtype, dtype)
        assert (got.lse.dtype, got.entropy.dtype) == (torch.float32, torch.float32)
        for name, target in expected._asdict().items():
            actual = getattr(got, name)
            size = max(1.0, np.abs(target).max())
            # Rounded once, behind the error of float32.
            bound = (torch.finfo(actual.dtype).eps + attention_error(torch.float32, 9, 8)) * size
            np.testing.assert_allclose(actual.detach().double(), target, atol=bound, err_msg=name)
        if backend in BACKENDS:
            grads = torch.autograd.grad(got.out.float().square().sum(), (q, k, v))
            assert all(x.dtype == dtype and x.isfinite().all() for x in grads)


X = torch.zeros(2, 3, 4, 8)
BAD_INPUT = {
    "list": (([1.0], X, X), {}, "q must be a floating-point tensor, got list"),
    "integers": ((X.long(), X, X), {}, "q must be a floating-point tensor, got torch.int64"),
    "three dimensions": ((X, X[0], X), {}, r"k must be \[batch, heads, time, size\], got shape"),
    "dtypes differ": ((X, X, X.double()), {}, "q and v must agree in dtype and device"),
    "sizes differ": ((X, X[..., :5], X), {}, r"k and v must both be \[2, 3, S, 8\] like q"),
    "fewer keys than queries": ((X, X[:, :, :3], X[:, :, :3]), {}, "got T=4 queries and S=3 keys"),
    "no queries": ((X[:, :, :0], X, X), {}, "got T=0 queries and S=4 keys"),
    "head size": ((X.repeat(1, 1, 1, 40),) * 3, {}, "head size must be 1 to 256, got 320"),
    "capture": ((X, X, X), {"capture": ("scores",)}, "capture takes any of"),
    "capture as a string": ((X, X, X), {"capture": "weights"}, "capture takes any of"),
    "causal": ((X, X, X), {"causal": "yes"}, "causal must be True or False, got 'yes'"),
    "scale": ((X, X, X), {"scale": math.nan}, "scale must be finite, got nan"),
    "infinite scale": ((X, X, X), {"scale": -math.inf}, "scale must be finite, got -inf"),
    "eight bits": (
        (X.to(torch.float8_e5m2),) * 3,
        {},
        "'native' takes float16, bfloat16, float32, float64, got torch.float8_e5m2",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(name):
    inputs, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=message) as caught:
        ops.attention(*inputs, **options)
    assert "\n" not in str(caught.value)


def test_triton_is_refused_for_cpu_tensors():
    with pytest.raises(RuntimeError, match="backend 'triton' cannot serve: serves CUDA tensors"):
        ops.attention(X, X, X, backend="triton")


def test_reference_backend_refuses_gradients():
    q = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="backend 'reference' has no gradient"):
        ops.attention(q, X, X, backend="reference")


def test_gradcheck_of_the_interpreted_triton_kernels():
    """The whole op, with the CUDA implementation in the place of the native one."""
    code = """
import importlib, torch
from bwt import ops
module = importlib.import_module("bwt.ops.attention")
implement = torch.library.Library("bwt", "IMPL")
implement.impl("attention", module._triton_forward, "CPU", allow_override=True)
implement.impl("attention_backward", module._triton_backward, "CPU", allow_override=True)
torch.manual_seed(0)
shapes = [(1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2)]
inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
for capture in [(), ("weights", "entropy")]:
    def outputs(q, k, v):
        got = ops.attention(q, k, v, capture=capture)
        return tuple(x for x in got if x is not None)
    assert torch.autograd.gradcheck(outputs, inputs)
print("checked")
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "checked", done.stderr
