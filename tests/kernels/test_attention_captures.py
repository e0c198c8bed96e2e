"""What the Triton kernels of attention capture besides weights and entropy, against NumPy in
float64: interpreted, and as sm_80 PTX that is executed."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers import tiers, triton_aot
from helpers.attention_triton import BACKWARD, MODULE, draw, example, reference, show
from helpers.triton_aot import DTYPES

pytest.importorskip("triton", reason="Triton is not installed")

FORWARD = ("out", "lse", "weights", "entropy", "received", "max_logit", "argmax")
TOP_K = ("top_weights", "top_positions")
ASKED = ("received", "max_logit", "top_k")


class Case(NamedTuple):
    mode: str
    shape: tuple
    top_k: int = 4
    chosen: bool = False
    causal: bool = True

    @property
    def choice(self):
        """Heads and queries, in another order than theirs."""
        heads, queries = self.shape[1:3]
        if not self.chosen:
            return None, None
        return ((heads - 1, 0) if heads > 1 else None), tuple({queries - 1, queries // 2, 0})

    def __str__(self):
        words = [self.mode, show(self.shape), f"top{self.top_k}"]
        return "-".join(words + ["chosen"] * self.chosen + ["full"] * (not self.causal))


def compute(call, case, x, gradients):
    """All outputs of the kernels by name."""
    heads, queries = case.choice
    options = {"causal": case.causal, "scale": None, "heads": heads, "queries": queries}
    options["precision"] = "tf32" if case.mode == "tf32" else "ieee"
    captured = dict.fromkeys(("capture_weights", "capture_entropy", "capture_received"), True)
    captured |= {"capture_peak": True, "top_k": case.top_k}
    found = call("attention_forward", *x.values(), **captured, **options)
    outputs = dict(zip(FORWARD + TOP_K, found, strict=True))
    first = [gradients.get(name) for name in ("out", "weights", "entropy", "lse")]
    saved = [outputs[name] for name in ("out", "lse", "entropy")]
    asked = [gradients.get(name) for name in ASKED]
    positions = [outputs[name] for name in ("argmax", *TOP_K)]
    found = call("attention_backward", *first, *x.values(), *saved, *asked, *positions, **options)
    return outputs | dict(zip(BACKWARD, found, strict=True))


def expect(case, x, gradients):
    """The same by the reference."""
    x = {name: value.double().numpy() for name, value in x.items()}
    heads, queries = case.choice
    options = {"causal": case.causal, "capture_heads": heads, "capture_queries": queries}
    capture = ("weights", "entropy", *ASKED[:2], "argmax", f"top_k={case.top_k}")
    found = reference.attention(**x, capture=capture, **options)
    outputs = dict(zip(FORWARD + TOP_K, (*found[:7], *found.top_k), strict=True))
    given = {f"grad_{name}": gradient.double().numpy() for name, gradient in gradients.items()}
    backward = reference.attention_backward(**x, **given, **options)
    return outputs | dict(zip(BACKWARD, backward, strict=True))


def draw_gradients(case, outputs):
    """Of all that has one; those of weights in the dtype of q, of rows in float32."""
    generator = torch.Generator().manual_seed(1)
    names = ("out", "weights", "entropy", "lse", *ASKED[:2])
    shapes = {name: outputs[name].shape for name in names} | {"top_k": outputs[TOP_K[0]].shape}
    narrow = {"out", "weights"}
    return {
        name: torch.randn(shape, generator=generator).to(
            DTYPES[case.mode] if name in narrow else torch.float32
        )
        for name, shape in shapes.items()
    }


def check(call, case, only=None):
    x, _ = draw(case.mode, case.shape)
    if case.mode == "tf32":  # as the products take them: which scores are largest must not change
        x = {
            n: torch.from_numpy(triton_aot.rounded(a.numpy(), "tf32")).float() for n, a in x.items()
        }
    gradients = draw_gradients(case, expect(case, x, {}))
    gradients = {name: g for name, g in gradients.items() if only is None or name in only}
    got, expected = compute(call, case, x, gradients), expect(case, x, gradients)
    T, S, D = case.shape[2:]
    # A score sums D products, a row S weights, a column T of them; operands have their own dtype.
    eps = {"tf32": 2.0**-10}.get(case.mode, torch.finfo(DTYPES[case.mode]).eps)
    bound = 8 * (eps + 2.0**-22 * (D + S + T) ** 0.5)
    for name, y in expected.items():
        if name in ("argmax", TOP_K[1]):
            assert got[name].dtype == torch.int64
            np.testing.assert_array_equal(got[name], y, err_msg=name)
            continue
        size = max(1.0, np.abs(y).max(initial=0.0))
        atol = bound * size * (T**0.5 if name == "received" else 1.0)
        np.testing.assert_allclose(got[name].double(), y, rtol=0, atol=atol, err_msg=name)
    return got


SHORT = [
    Case("fp32", (2, 3, 7, 9, 5)),
    Case("fp32", (1, 2, 2, 3, 16), top_k=8, causal=False),  # more than there are keys
    Case("fp32", (3, 3, 13, 16, 16), chosen=True),  # heads that share a tile in 16 bits
    Case("fp16", (3, 3, 13, 16, 16), chosen=True),
    Case("fp16", (1, 3, 20, 30, 16), top_k=5),
    Case("fp32", (1, 2, 40, 100, 20), causal=False),  # several blocks of queries
    Case("fp64", (1, 2, 9, 20, 16), top_k=9, chosen=True),
]
STREAM = [
    Case("fp32", (1, 2, 20, 270, 16), top_k=3),
    Case("fp64", (1, 1, 20, 270, 16), chosen=True, causal=False),
    Case("fp16", (1, 1, 20, 300, 16), chosen=True),
]


@pytest.mark.parametrize("case", SHORT + STREAM, ids=str)
def test_values(call, case):
    check(call, case)


@pytest.mark.parametrize("case", [SHORT[2], STREAM[0]], ids=["short", "stream"])
@pytest.mark.parametrize("name", ASKED)
def test_single_gradients(call, case, name):
    check(call, case, only=(name,))


@pytest.mark.parametrize("keys", [20, 270], ids=["short", "stream"])
def test_of_equal_scores_the_first_comes_first(call, keys):
    """And nothing comes where there is no key, or no score but -inf."""
    x = {name: torch.zeros(1, 2, n, 16) for name, n in zip("qkv", (3, keys, keys), strict=True)}
    x["q"][0, 1, 2, 0] = float("-inf")
    x["k"][..., 0] = 1.0
    x["q"][:, 0, 1, 1] = 1.0
    x["k"][0, 0, 17, 1] = x["k"][0, 0, keys - 2, 1] = 1.0
    options = {"causal": True, "scale": 1.0, "capture_weights": False, "capture_entropy": False}
    found = call("attention_forward", *x.values(), **options, capture_peak=True, top_k=3)
    max_logit, argmax, weights, positions = found[5:]
    assert positions[0, 0].tolist() == [[0, 1, 2], [17, keys - 2, 0], [0, 1, 2]]
    assert argmax[0].tolist() == [[0, 17, 0], [0, 0, -1]]
    assert max_logit[0, 1, 2] == float("-inf") and positions[0, 1, 2].tolist() == [-1, -1, -1]
    assert not weights[0, 1, 2].any() and weights[0, 0, 0].allclose(torch.tensor(1 / (keys - 2)))


def test_fewer_keys_than_are_asked_for(call):
    x, _ = draw("fp32", (1, 1, 5, 5, 16))
    options = {"causal": True, "scale": None, "capture_weights": False, "capture_entropy": False}
    found = call("attention_forward", *x.values(), **options, top_k=4)
    assert (found[8][0, 0] >= 0).sum(-1).tolist() == [1, 2, 3, 4, 4]
    assert ((found[7][0, 0] > 0) == (found[8][0, 0] >= 0)).all()


EXECUTED = [
    Case("fp16", (1, 2, 39, 39, 32)),
    Case("bf16", (3, 3, 7, 9, 16), chosen=True),
    Case("tf32", (1, 1, 40, 93, 32)),
    Case("fp32", (1, 1, 33, 39, 32), chosen=True),
    Case("fp16", (1, 1, 20, 304, 32), top_k=3, chosen=True),
    Case("fp32", (1, 1, 20, 270, 16)),
]


def compiled(case):
    return example(
        case.mode,
        case.shape,
        asked=[True, True, case.top_k],
        chosen=[x if x is None else list(x) for x in case.choice],
    )


STREAMED = len(EXECUTED) - 1


def test_streaming_kernels_are_executed_by_default():
    from bwt.kernels import aot

    executed = triton_aot.kernels_of_examples(MODULE, [compiled(EXECUTED[STREAMED])])
    known = triton_aot.kernels(aot.specialisations("attention", "sm_80").values())
    assert executed == {name for name in known if "stream_" in name}


@pytest.fixture
def emulate(compiler, monkeypatch):
    return triton_aot.emulator(compiler, monkeypatch, MODULE)


@pytest.mark.parametrize("case", tiers.mark("emulated", EXECUTED, (STREAMED,)), ids=str)
def test_ptx(compiler, emulate, case):
    call, stats = emulate
    records = compiler.get(MODULE, "sm_80", **compiled(case))
    got = check(call, case)
    assert stats.keys() == records.keys()
    # Nothing is as large as weights but those of the chosen.
    written = sum(found.store_sectors_ideal for found in stats.values())
    size = sum(x.numel() * x.element_size() for x in got.values())
    assert written <= 2.5 * size / 32
