"""What kernels/contracts.py says of each op is what the op does, and what the C++ has too."""

import re

import pytest
import torch
from bwt.kernels.contracts import CONTRACTS, FLOATS, ROW_SUM_TOLERANCE, SCAN_CHUNK
from helpers import ROOT

from bwt import ops
from bwt.ops import _checks

ROWS = torch.full((2, 2), 0.5)
KEYS = torch.tensor([[0, 1]])


def uniform(*shape):
    return torch.full(shape, 1 / shape[-1])


def hmm(op, dtype=torch.float32, num_states=2, num_symbols=2):
    S, V = num_states, num_symbols
    parameters = [x.to(dtype) for x in (uniform(S), uniform(S, S), uniform(S, V))]
    return lambda backend: op(KEYS, *parameters, backend=backend)


def bijection(dtype=torch.float32, num_symbols=None, num_noisy_symbols=2):
    if num_symbols is not None:
        return lambda backend: ops.bijection_posterior(KEYS, KEYS, num_symbols, backend=backend)
    # Of no steps: the table of subsets takes long.
    V, ids = num_noisy_symbols, KEYS[:0, :0]
    channel = torch.eye(V, dtype=dtype)
    return lambda backend: ops.bijection_posterior(ids, ids, V, channel=channel, backend=backend)


def attention(dtype=torch.float32, head_size=4):
    q = torch.ones(1, 1, 2, head_size).to(dtype)
    return lambda backend: ops.attention(q, q, q, backend=backend)


def scan(dtype=torch.float32, num_states=2):
    u, A, B = torch.ones(1, 3, 2), -torch.ones(2, num_states), torch.ones(1, 3, num_states)
    u, A, B = (x.to(dtype) for x in (u, A, B))
    return lambda backend: ops.selective_scan(u, u, A, B, B, backend=backend)


def add_bias(dtype):
    return lambda backend: ops.add_bias(ROWS.to(dtype), ROWS[0].to(dtype), backend=backend)


def add_rms_norm(dtype):
    x = ROWS.to(dtype)
    return lambda backend: ops.add_rms_norm(x, x, x[0], x[0], backend=backend)


def gelu(dtype):
    return lambda backend: ops.gelu(ROWS.to(dtype), backend=backend)


def rms_norm(dtype):
    return lambda backend: ops.rms_norm(ROWS.to(dtype), ROWS[0].to(dtype), backend=backend)


# Op -> a call of it on the CPU with a dtype or a size of one's choice.
CALLS = {
    "add_bias": add_bias,
    "add_rms_norm": add_rms_norm,
    "attention": attention,
    "bijection_posterior": bijection,
    "gelu": gelu,
    "hmm_filter": lambda **choice: hmm(ops.hmm_filter, **choice),
    "hmm_smooth": lambda **choice: hmm(ops.hmm_smooth, **choice),
    "rms_norm": rms_norm,
    "selective_scan": scan,
}
ON_THE_CPU = [
    (op, backend)
    for op, contract in CONTRACTS.items()
    for backend in contract.backends
    if backend in ("native", "torch", "reference")
]
SIZES = [
    (op, backend, size)
    for op, backend in ON_THE_CPU
    for size in CONTRACTS[op].backends[backend].limits
]


def test_every_op_has_a_contract():
    made_of_others = {"selective_scan_states"}
    returned = {"AttentionOutput", "CapturedAttention", "TopK"}
    assert set(CONTRACTS) == set(ops.__all__) - made_of_others - returned == set(CALLS)
    assert all(op == contract.op for op, contract in CONTRACTS.items())


@pytest.mark.parametrize("op,backend", ON_THE_CPU)
def test_dtypes(op, backend):
    served = CONTRACTS[op].backends[backend].dtypes
    for dtype in FLOATS:
        call = CALLS[op](dtype=dtype)
        if dtype in served:
            call(backend)
        else:
            with pytest.raises(ValueError, match=f"{op}: .* float32(,| or) float64"):
                call(backend)


@pytest.mark.parametrize("op,backend,size", SIZES)
def test_limits(op, backend, size):
    limit = CONTRACTS[op].backends[backend].limits[size]
    CALLS[op](**{size: limit})(backend)
    with pytest.raises(ValueError, match=f"{op}: .* {limit}.*{limit + 1}"):
        CALLS[op](**{size: limit + 1})(backend)


def test_what_only_some_backends_take_is_refused_in_one_line():
    contract = CONTRACTS["attention"]
    limit = contract.backends["triton"].limits["head_size"]
    assert limit < contract.limit("head_size")
    _checks.check_limit(contract, "triton", "head_size", limit)
    with pytest.raises(ValueError, match=f"head size {limit + 1} is above {limit}.*torch'$") as e:
        _checks.check_limit(contract, "triton", "head_size", limit + 1)
    assert "\n" not in str(e.value)
    with pytest.raises(
        ValueError, match="'triton' takes float16, bfloat16, float32, got .*float64"
    ):
        _checks.check_dtype(contract, "triton", torch.float64, "q, k and v")


def test_the_launchers_go_up_to_the_limits():
    from bwt.kernels import attention, hmm_filter, selective_scan
    from bwt.kernels.configs import TABLE

    limits = {
        op: contract.backends["triton"].limits
        for op, contract in CONTRACTS.items()
        if "triton" in contract.backends
    }
    largest = {op: max(key[3] for key in TABLE if key[0] == op) for op in {key[0] for key in TABLE}}
    assert attention.HEAD_SIZES[-1] == largest["attention"] == limits["attention"]["head_size"]
    assert largest["hmm_filter"] == limits["hmm_filter"]["num_states"]
    assert selective_scan.SIZES[-1] == largest["selective_scan"]
    assert largest["selective_scan"] == limits["selective_scan"]["num_states"]
    served = CONTRACTS["hmm_filter"].backends["triton"].dtypes
    assert set(hmm_filter.MODES) == set(served)
    assert set(selective_scan.MODES) == set(CONTRACTS["selective_scan"].backends["triton"].dtypes)


def test_the_constants_of_the_cpp():
    text = "\n".join(path.read_text() for path in (ROOT / "csrc").rglob("*.h"))
    said = dict(re.findall(r"constexpr \w+ (k\w+) = ([\d.e-]+);", text))
    limits = {op: contract.backends["native"].limits for op, contract in CONTRACTS.items()}
    bijection = limits["bijection_posterior"]
    assert int(said["kMaxHeadSize"]) == limits["attention"]["head_size"]
    assert int(said["kMaxHmmStates"]) == limits["hmm_filter"]["num_states"]
    assert int(said["kMaxScanStates"]) == limits["selective_scan"]["num_states"]
    assert int(said["kMaxSymbols"]) == bijection["num_symbols"]
    assert int(said["kMaxNoisySymbols"]) == bijection["num_noisy_symbols"]
    assert int(said["kScanChunk"]) == SCAN_CHUNK
    assert float(said["kHmmRowSumTolerance"]) == ROW_SUM_TOLERANCE


def test_the_files_of_the_checklist_exist():
    """Of a new op or diagnostic, if it were attention; tests are named without their folders."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`([\w/<>]+\.(?:py|h|cpp|cu|md|toml))`", text)
    assert len(named) > 20
    for name in named:
        op = "bijection_posterior" if name.endswith(".cu") else "attention"
        name = name.replace("<op>", op).replace("<name>", "attention")
        assert (ROOT / name).exists() or any(
            list(place.rglob(name)) for place in (ROOT / "tests", ROOT / "bwt/ops")
        ), name
