"""Compiled, captured, trained and distributed on a GPU; the same tests on a CPU, where they run
today."""

import pytest
import torch
from helpers import gpu_programs

from bwt import ops

pytest.importorskip("triton", reason="Triton is not installed")

DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.real_gpu])]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(device, mode):
    if device == "cpu" and mode != "default":
        pytest.skip("CUDA graphs are for a GPU")
    gpu_programs.compile_agrees(device, mode)


def test_graph(device):
    gpu_programs.graph_replays(device)


def test_a_graph_of_what_the_host_reads_is_refused(monkeypatch):
    compute = ops.attention

    def attention(q, k, v, **options):
        assert q[0, 0, 0, 0].isfinite()
        return compute(q, k, v, **options)

    monkeypatch.setattr(ops, "attention", attention)
    with pytest.raises(RuntimeError, match="value out of a tracing tensor"):
        gpu_programs.graph_replays("cpu")


@pytest.mark.parametrize("targets", ["sampled", "posterior"])
@pytest.mark.parametrize("task", gpu_programs.TASKS)
def test_three_steps_agree_with_a_cpu(device, task, targets):
    gpu_programs.steps_agree(device, task, targets=targets)


@pytest.mark.parametrize("model,optimizer", [("mamba", "adamw"), ("transformer", "muon")])
def test_three_steps_of_other_models_and_optimizers(device, model, optimizer):
    gpu_programs.steps_agree(device, "hmm", model, optimizer=optimizer)


@pytest.mark.parametrize("task", ["bijection", "hmm"])
def test_three_steps_in_bf16(device, task, monkeypatch):
    if device == "cpu":  # where only eager torch takes 16 bits
        monkeypatch.setenv("BWT_BACKEND", "torch")
    gpu_programs.bf16_steps_agree(device, task)


@pytest.mark.gpu
@pytest.mark.real_gpu
def test_three_steps_of_mamba_in_bf16():
    gpu_programs.bf16_steps_agree("cuda", "hmm", "mamba")


def test_other_kernels_agree_within_the_same_bound(monkeypatch):
    """The stand-in for a GPU: eager torch instead of the native kernels, in another order."""
    compute = gpu_programs.three_steps

    def three_steps(config, device, *rest):
        with monkeypatch.context() as patch:
            if device == "cuda":
                patch.setenv("BWT_BACKEND", "torch")
            return compute(config, "cpu", *rest)

    monkeypatch.setattr(gpu_programs, "three_steps", three_steps)
    for task in gpu_programs.TASKS:
        gpu_programs.steps_agree("cuda", task)


@pytest.mark.parametrize("task", gpu_programs.TASKS)
def test_a_small_error_of_a_kernel_is_noticed(task, monkeypatch):
    """Attention off by 1%, on the device only."""
    compute, attention = gpu_programs.three_steps, ops.attention

    def wrong(*tensors, **options):
        found = attention(*tensors, **options)
        return found._replace(out=1.01 * found.out)

    def three_steps(config, device, *rest):
        with monkeypatch.context() as patch:
            if device == "cuda":
                patch.setattr(ops, "attention", wrong)
            return compute(config, "cpu", *rest)

    monkeypatch.setattr(gpu_programs, "three_steps", three_steps)
    with pytest.raises(AssertionError):
        gpu_programs.steps_agree("cuda", task)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resume_is_exact(device, optimizer, tmp_path):
    gpu_programs.resume_is_exact(device, tmp_path, optimizer=optimizer, average=0.5)


@pytest.mark.gpu
@pytest.mark.real_gpu
@pytest.mark.parametrize("compile", ["on", "graphs"])
def test_compiled_training_resumes(compile, tmp_path):
    gpu_programs.resume_is_exact("cuda", tmp_path, compile=compile)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_processes_agree(device, count, tmp_path):
    if device == "cuda" and torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} CUDA devices")
    if device == "cpu" and count == 1:
        pytest.skip("two show all that one would")
    gpu_programs.processes_agree(device, count, tmp_path)


def test_the_extension_serves(device):
    gpu_programs.extension_serves(device)
