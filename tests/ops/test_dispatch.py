"""Which backend serves a call, on machines that differ in what they have."""

import importlib
import sys
import types
import warnings

import pytest
import torch
from bwt.kernels import configs

import bwt
from bwt.cli.commands import kernels
from bwt.ops import _dispatch, _library
from bwt.runs import environment

CUDA = torch.device("cuda", 0)
TRITON_OPS = ("attention", "hmm_filter", "hmm_smooth", "selective_scan")


@pytest.fixture
def gpu(monkeypatch):
    """A function that pretends that this machine has one GPU of a kind."""

    def pretend(capability=(9, 0), cuda_fault=None, triton_fault=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Pretended")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(_library, "cuda_fault", cuda_fault)
        monkeypatch.setattr(_library, "triton_fault", triton_fault)
        monkeypatch.setattr(_dispatch, "_warned", set())
        monkeypatch.delenv("BWT_BACKEND", raising=False)

    return pretend


def test_a_whole_gpu_host_uses_its_own_kernels_without_a_warning(gpu, recwarn):
    gpu()
    assert {_dispatch.choose(op, "auto", CUDA) for op in TRITON_OPS} == {"triton"}
    assert _dispatch.choose("bijection_posterior", "auto", CUDA) == "cuda"
    assert not recwarn.list


def test_a_gpu_host_without_the_extension_is_served_by_torch_with_one_warning(gpu):
    gpu(cuda_fault="bwt._C_cuda is not built; do this")
    op = "bijection_posterior"
    with pytest.warns(RuntimeWarning, match="slower .*_C_cuda is not built; do this") as caught:
        for _ in range(3):
            assert _dispatch.choose(op, "auto", CUDA) == "torch"
    assert len(caught) == 1
    with pytest.raises(RuntimeError, match="backend 'cuda' cannot serve: bwt._C_cuda is not built"):
        _dispatch.choose(op, "cuda", CUDA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {_dispatch.choose(other, "auto", CUDA) for other in TRITON_OPS} == {"triton"}


def test_without_a_gpu_there_is_nothing_to_fall_back_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("BWT_BACKEND", raising=False)
    for op in (*TRITON_OPS, "bijection_posterior"):
        with pytest.raises(RuntimeError, match="torch sees no CUDA device"):
            _dispatch.choose(op, "auto", CUDA)


def test_the_warning_points_at_the_call(gpu, monkeypatch):
    gpu()
    monkeypatch.setitem(_dispatch.UNUSABLE, "native", lambda device: "not today")
    monkeypatch.setitem(_dispatch.AUTO, "cpu", ("native",))
    keys = torch.tensor([[0, 1]])
    real = _dispatch.automatic
    monkeypatch.setattr(_dispatch, "automatic", lambda op, device: real(op, CUDA))
    monkeypatch.setattr(_library, "cuda_fault", "missing")
    with pytest.warns(RuntimeWarning) as caught:
        bwt.ops.bijection_posterior(keys, keys, 2)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "error,reason",
    [
        (ModuleNotFoundError("gone"), "not built; with nvcc of CUDA 13 on the PATH, build it with"),
        (ImportError("undefined symbol: x"), r"does not load \(undefined symbol: x\); .*rebuild"),
    ],
)
def test_the_reason_is_that_of_the_loader(gpu, monkeypatch, error, reason):
    def fail(name):
        raise error

    gpu()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(importlib, "import_module", fail)
    gpu(cuda_fault=_library._load_cuda())
    with pytest.warns(RuntimeWarning, match=reason):
        assert _dispatch.choose("bijection_posterior", "auto", CUDA) == "torch"


@pytest.mark.parametrize(
    "capability,entries",
    [
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90"),
        ((10, 0), "sm_100"),
        ((12, 0), "sm_120"),
    ],
)
def test_a_known_gpu_is_served_by_its_own_entries_without_a_word(gpu, recwarn, capability, entries):
    gpu(capability)
    assert configs.architecture(CUDA) == entries
    assert configs.lookup("attention", "stream_forward", "fp16", 64, entries)
    assert not recwarn


@pytest.mark.parametrize(
    "capability,name,entries",
    [
        ((7, 0), "sm_70", "sm_75"),
        ((8, 7), "sm_87", "sm_86"),
        ((10, 3), "sm_103", "sm_100"),
        ((11, 0), "sm_110", "sm_100"),
        ((12, 1), "sm_121", "sm_120"),
        ((13, 0), "sm_130", "sm_120"),
    ],
)
def test_another_gpu_takes_the_nearest_entries_and_one_warning(gpu, capability, name, entries):
    gpu(capability)
    with pytest.warns(RuntimeWarning, match=f"{name}, those of {entries} .* `bwt tune`") as seen:
        for _ in range(3):
            assert configs.architecture(CUDA) == entries
    assert len(seen) == 1


def test_a_gpu_with_a_table_of_its_own_is_not_warned_of(gpu, monkeypatch, recwarn):
    gpu((12, 1))
    monkeypatch.setattr(configs.tuned, "of_device", lambda index: "Pretended")
    assert configs.architecture(CUDA) == "sm_120:Pretended" and not recwarn


def test_without_tensor_cores_every_dtype_has_the_tiles_of_float32():
    for dtype in ("fp16", "bf16", "tf32"):
        key = ("attention", "short_forward")
        assert configs.lookup(*key, dtype, 16, "sm_75") == configs.lookup(*key, "fp32", 16, "sm_75")
        assert configs.lookup(*key, dtype, 16, "sm_80") != configs.lookup(*key, "fp32", 16, "sm_80")


def test_a_gpu_before_volta_is_refused_in_one_line_and_served_by_torch(gpu):
    gpu((6, 1))
    with pytest.raises(RuntimeError, match="is sm_61, and .* serve sm_70 .* backend='torch'") as e:
        _dispatch.choose("attention", "triton", CUDA)
    assert "\n" not in str(e.value)
    with pytest.warns(RuntimeWarning, match="is sm_61"):
        assert _dispatch.choose("attention", "auto", CUDA) == "torch"


def test_a_device_is_asked_once(gpu, monkeypatch):
    gpu()
    asked = []
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: asked.append(device) or (8, 0)
    )
    for _ in range(3):
        assert _dispatch.choose("attention", "auto", CUDA) == "triton"
        assert _dispatch.choose("hmm_filter", "auto", torch.device("cuda", 1)) == "triton"
    assert asked == [0, 1]


@pytest.mark.parametrize(
    "name,entries", [("gfx942:sramecc+", "gfx942"), ("gfx950", "gfx942"), ("gfx90a", "gfx942")]
)
def test_amd_gpus(gpu, monkeypatch, name, entries):
    class Properties:
        gcnArchName = name

    gpu()
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if name.startswith(entries) else "ignore")
        assert configs.architecture(CUDA) == entries
    Properties.gcnArchName = "gfx1100"
    configs.forget()
    with pytest.raises(RuntimeError, match="is gfx1100"):
        configs.architecture(CUDA)


def test_later_architectures_share_the_entries_made_for_little_shared_memory():
    key = ("attention", "short_forward", "tf32", 128)
    little, general = (configs.TABLE[(*key, place)] for place in ("sm_86", "any"))
    assert configs.lookup(*key, "sm_89") == configs.lookup(*key, "sm_120") == little
    assert configs.lookup(*key, "sm_90") == general != little
    assert set(configs.SHARED_MEMORY) == set(configs.ARCHITECTURES)


def test_env_says_what_auto_does(gpu):
    gpu((8, 9), cuda_fault="bwt._C_cuda is not built; do this")
    report = environment.collect()
    rows = report["ops"]["bijection_posterior"]
    assert rows["cuda"] == {
        "usable": False,
        "reason": "bwt._C_cuda is not built; do this",
        "automatic_for": None,
    }
    assert rows["torch"]["automatic_for"] == "cuda"
    assert report["ops"]["attention"]["triton"]["automatic_for"] == "cuda"
    assert report["ops"]["gelu"]["torch"]["automatic_for"] == "cuda"
    assert "CUDA: Pretended (sm_89)" in environment.render(report)


def test_a_compiled_call_may_ask_for_the_gpu_and_warn(monkeypatch):
    """Dynamo itself believes a pretended GPU, so the two parts it could stumble on stand alone."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Pretended")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    monkeypatch.setattr(_dispatch, "_warned", set())

    def double(x):
        reason = _dispatch._unserved(CUDA)
        _dispatch._warn_once("attention", reason)
        return x * 2 if "sm_61" in reason else x

    with pytest.warns(RuntimeWarning, match="slower .*sm_61"):
        found = torch.compile(double, backend="eager", fullgraph=True)(torch.ones(2))
    assert found.tolist() == [2.0, 2.0]


def test_kernels_say_what_this_build_was_compiled_for(gpu, monkeypatch):
    gpu()
    built = types.ModuleType("bwt._C_cuda")
    built.targets = "sm_80,sm_90,compute_90"
    monkeypatch.setitem(sys.modules, "bwt._C_cuda", built)
    monkeypatch.setattr(bwt, "_C_cuda", built, raising=False)
    rows = [row for row in kernels.collect() if row["backend"] == "cuda"]
    assert rows and {tuple(row["compiled_for"]) for row in rows} == {
        ("sm_80", "sm_90", "compute_90")
    }
