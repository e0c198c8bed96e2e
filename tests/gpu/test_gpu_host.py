"""What a user meets on a machine with GPUs: the command, presets, devices, sweeps and torchrun, on
a host that only says it has some."""

import json
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from helpers.gpu_host import pretend

from bwt import tasks
from bwt.cli import main
from bwt.ops import _library
from bwt.runs.config import TrainConfig
from bwt.runs.device import local_device
from bwt.runs.directory import RunDirectory
from bwt.runs.loading import build_model
from bwt.sweep.processes import Processes
from bwt.train import distributed

NOT_BUILT = "bwt._C_cuda is not built; build it with `make build`"
TINY = ["--steps", "2", "--evaluations", "1", "--eval-sequences", "8", "--num-symbols", "4"]
TINY += ["--layers", "1", "--width", "12", "--batch-size", "4"]


@pytest.fixture(params=[1, 2], ids=["one-gpu", "two-gpus"])
def gpus(request, monkeypatch):
    pretend(monkeypatch, request.param)
    return request.param


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_env_names_the_devices_and_what_serves_them(gpus, capsys):
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    assert f"CUDA: {', '.join(['NVIDIA A100 (sm_80)'] * gpus)}; torch is built for" in text
    assert text.count("automatic for cuda tensors") >= 4
    assert main(["env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["cuda_devices"] == ["NVIDIA A100 (sm_80)"] * gpus
    assert report["ops"]["bijection_posterior"]["cuda"]["usable"]
    assert all(report["ops"][op]["triton"]["usable"] for op in ("attention", "hmm_filter"))


def test_env_and_kernels_without_the_extensions(monkeypatch, capsys):
    pretend(monkeypatch, 1, fault=NOT_BUILT)
    native = "bwt._C is not built; build it with `make build`"
    monkeypatch.setattr(_library, "native_fault", native)
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    assert f"not usable: {NOT_BUILT}" in text and f"not usable: {native}" in text
    assert "SIMD (native extension not built)" in text
    assert main(["kernels", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    faults = {row["backend"]: row["not_usable"] for row in rows}
    assert (faults["cuda"], faults["native"], faults["triton"]) == (NOT_BUILT, native, None)


def test_kernels(gpus, capsys, monkeypatch):
    built = SimpleNamespace(targets="sm_80,compute_80")
    monkeypatch.setitem(sys.modules, "bwt._C_cuda", built)
    assert main(["kernels", "bijection_posterior", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    cuda = [row for row in rows if row["backend"] == "cuda"]
    assert cuda and all(row["compiled_for"] == ["sm_80", "compute_80"] for row in cuda)


@pytest.mark.parametrize(
    "words,steps",
    [([], 3_000), (["--preset", "paper"], 100_000)],
    ids=["default", "paper"],
)
def test_help_shows_the_steps_of_the_preset(gpus, words, steps, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "bijection", *words, "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"training steps (default: {steps})" in text
    assert "has not been seen to converge here" in text and "(default: quick)" in text
    assert "so that they repeat (default: True)" in text


@pytest.mark.parametrize(
    "words,opening",
    [
        ([], "preset quick: 2 steps of 4 sequences"),
        (["--preset", "paper"], "preset paper: 2 steps of 4 sequences"),
    ],
)
def test_train_says_which_preset_it_takes(words, opening, gpus, work, capsys, monkeypatch):
    # The steps themselves are taken on the CPU.
    monkeypatch.setattr("bwt.train.loop.local_device", lambda name: torch.device("cpu"))
    assert main(["train", "bijection", "--out", "run", *TINY, *words]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith(opening) and second.startswith("Each sequence draws one of 4!")


@pytest.mark.parametrize(
    "words,complaint",
    [
        (["--device", "cuda:2"], "device cuda:2: torch sees"),
        (["--device", "gpu"], "device must be auto, cpu or cuda, got 'gpu'"),
        (["--heads", "3"], "width 64 is not a multiple of heads 3"),
        (["--device", "cpu", "--compile", "graphs"], "needs a GPU"),
    ],
)
def test_bad_value_is_one_line_and_two(words, complaint, gpus, work, capsys, monkeypatch):
    monkeypatch.setattr("bwt.train.loop.loop", lambda *_: pytest.fail("a training has begun"))
    assert main(["train", "bijection", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and complaint in captured.err
    assert captured.out == "" and list(work.iterdir()) == []


@pytest.mark.parametrize(
    "count,variables,name,device",
    [
        (0, {}, "auto", "cpu"),
        (1, {}, "auto", "cuda:0"),
        (2, {}, "cuda", "cuda:0"),
        (2, {}, "cuda:1", "cuda:1"),
        (2, {}, "cpu", "cpu"),
        (1, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "auto", "cuda:0"),
        (2, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "auto", "cuda:0"),
        (2, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "auto", "cuda:1"),
        (1, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "cpu", "cpu"),
    ],
)
def test_every_process_takes_its_own_device(count, variables, name, device, monkeypatch):
    pretend(monkeypatch, count)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    chosen = local_device(name)
    assert chosen == torch.device(device)
    # Kernels are launched on the current device.
    assert chosen.type == "cpu" or torch.cuda.current_device() == chosen.index


@pytest.mark.parametrize(
    "count,rank,name,complaint",
    [
        (0, 0, "cuda", "torch sees no CUDA device"),
        (1, 1, "auto", "process 2 of 2 on this machine has no GPU of its own (torch sees 1 GPU)"),
        (1, 1, "auto", "use torchrun --nproc-per-node 1, or --device cpu"),
        (2, 1, "cuda:0", "the 2 processes of this machine cannot share a GPU"),
    ],
)
def test_a_process_without_a_device_is_told_in_one_line(count, rank, name, complaint, monkeypatch):
    pretend(monkeypatch, count)
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError) as caught:
        local_device(name)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_the_group_is_bound_to_the_device_of_the_process(device, monkeypatch):
    pretend(monkeypatch, 2)
    for variable, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(variable, value)
    calls = []
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda *args, **named: calls.append((args, named))
    )
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: calls.append("left"))
    with distributed.process_group(torch.device(device)):
        pass
    gpu = (("cpu:gloo,cuda:nccl",), {"device_id": torch.device("cuda:1")})
    assert calls == [gpu if device != "cpu" else (("gloo",), {}), "left"]


def test_only_the_first_process_speaks(gpus, work, capsys, monkeypatch):
    monkeypatch.setattr("bwt.train.loop.local_device", lambda name: torch.device("cpu"))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["train", "bijection", "--out", "run", *TINY]) == 0
    assert capsys.readouterr().out == ""


def test_building_a_model_touches_no_gpu(gpus, monkeypatch):
    def touched(*_):
        pytest.fail("a GPU was asked for its generator")

    monkeypatch.setattr(torch.cuda, "get_rng_state", touched)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched)
    config = TrainConfig(task="bijection", model_options=dict(layers=1, width=8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_model(config, tasks.get("bijection"))


@pytest.mark.parametrize(
    "count,visible,jobs,slots",
    [
        (1, None, 0, ["0"]),
        (2, None, 0, ["0", "1"]),
        (2, None, 1, ["0"]),
        (1, None, 3, ["0", "0", "0"]),
        (2, None, 3, ["0", "1", "0"]),
        (1, "3", 0, ["3"]),
        (2, "GPU-a,GPU-b", 0, ["GPU-a", "GPU-b"]),
        (0, "", 2, [None, None]),
        (0, "-1", 2, [None, None]),
    ],
)
def test_slots_of_a_sweep(count, visible, jobs, slots, monkeypatch):
    pretend(monkeypatch, count)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Processes(jobs).slots == slots
    assert Processes(2, gpus=False).slots == [None, None]


def test_a_cell_of_a_sweep_sees_its_own_gpu(monkeypatch, tmp_path):
    pretend(monkeypatch, 2)
    seen = []

    class Popen:
        def __init__(self, words, env, **_):
            seen.append(env["CUDA_VISIBLE_DEVICES"])

    class Cell:
        def next_words(self):
            return ["env"]

    monkeypatch.setattr("subprocess.Popen", Popen)
    workers = Processes()
    for number in range(2):
        workers.start(number, Cell(), tmp_path / "log", 0)
    assert sorted(seen) == ["0", "1"] and not workers.free


def test_sweep_says_which_preset_it_takes(gpus, work, capsys, monkeypatch):
    monkeypatch.setattr("bwt.sweep.sweep.Sweep.run", lambda self: self.outcomes)
    assert main(["sweep", "bijection", "--seed", "0", "1", "--out", "out"]) == 0
    assert capsys.readouterr().out.startswith("preset quick: 2 cells of up")


def test_a_run_of_a_gpu_host_is_read_by_others(gpus, work, capsys, monkeypatch):
    """What is recorded of the machine names its GPUs, and another machine evaluates the run."""
    with monkeypatch.context() as patch:
        patch.setattr("bwt.train.loop.local_device", lambda name: torch.device("cpu"))
        assert main(["train", "bijection", "--out", "run", "--json", *TINY]) == 0
    saved = json.loads((work / "run/environment.json").read_text())
    assert saved["machine"]["cuda_devices"] == ["NVIDIA A100 (sm_80)"] * gpus
    pretend(monkeypatch, 0)
    assert main(["eval", "run", "--sequences", "4", "--json"]) == 0
    assert RunDirectory.open("run").read_config()["device"] == "auto"
