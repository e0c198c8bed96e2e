"""Triton kernels without a GPU: interpreted, compiled ahead of time, and executed as PTX.

Nothing of Triton is imported here at the top: whether kernels are interpreted is decided when
they are first imported, so every process settles its environment before that.
"""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from emulator.ptx import Memory, Stats, launch

TESTS = Path(__file__).parents[1]
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


class Interpreter:
    """A process that calls functions of kernel modules with TRITON_INTERPRET=1."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "helpers.triton_aot"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Behind what this process has, which may be another checkout than the installed one.
            env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": _path()},
        )

    def call(self, module: str, function: str, *args, **kwargs):
        pickle.dump((module, function, args, kwargs), self.process.stdin)
        self.process.stdin.flush()
        failed, result = pickle.load(self.process.stdout)
        if failed:
            raise AssertionError(f"{function} failed in the interpreter:\n{result}")
        return result

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def _path() -> str:
    return os.pathsep.join((*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)))


def _serve():
    """The other end of an Interpreter."""
    import traceback

    # What a kernel forgets to write shows as NaN. The public function loads torch._inductor.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints must not mix with answers
    while True:
        try:
            module, function, args, kwargs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (False, getattr(import_module(module), function)(*args, **kwargs))
        except Exception:
            answer = (True, traceback.format_exc())
        pickle.dump(answer, answers)
        answers.flush()


class Compiler:
    """Examples of kernel modules, each compiled ahead of time when a test first asks for it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.records: dict[str, dict] = {}

    def get(self, module: str, arch: str, **example) -> dict[str, dict]:
        """Return kernel name -> record of kernels.aot, for one example."""
        launches = import_module(module).example_launches(arch=arch, **example)
        return {name: self._build(name, one, arch) for name, one in launches.items()}

    def find(self, launch, arch: str = "sm_80") -> dict:
        """Return the record of a launch whose example was compiled."""
        return self.records[launch_key(launch, arch)]

    def _build(self, name: str, launch, arch: str) -> dict:
        from bwt.kernels import aot

        key = launch_key(launch, arch)
        if key not in self.records:
            with mock.patch.dict(os.environ, TRITON_CACHE_DIR=str(self.folder / "cache")):
                out = str(self.folder / str(len(self.records)))
                self.records[key] = aot.build(name, launch, arch, out)
        return self.records[key]


class _NoDriver:
    """Lets Triton's own launcher compile for sm_80 where there is no device."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def without_lines(ptx: str) -> str:
    """The code alone; places in source files depend on how a kernel was reached."""
    code, _, _ = ptx.partition("\t.section\t.debug")
    return re.sub(r"\s*\.(loc|file)\t.*|//.*", "", code)


def ptx_of_a_call(module: str, **example) -> dict[str, str]:
    """Kernel name -> PTX that a call on an sm_80 would compile, through Triton's launcher."""
    from triton.runtime import driver

    driver.set_active(_NoDriver())
    return {
        name: without_lines(
            one.kernel.warmup(
                **one.arguments,
                **one.config.tiles,
                **one.config.options,
                grid=(one.grid,),
            ).asm["ptx"]
        )
        for name, one in import_module(module).example_launches(arch="sm_80", **example).items()
    }


def launch_key(one, arch) -> str:
    """Launches with the same key run the same code."""
    from bwt.kernels import aot

    return repr((one.kernel.__name__, arch, aot.signature(one), one.config))


def execute(record: dict, one, seed: int = 0, timed: bool = False) -> Stats:
    """Run the PTX of a launch, warps in an order drawn from `seed`; it writes to its tensors."""
    memory, mapped = Memory(), {}

    def place(x: torch.Tensor) -> int:
        storage = x.untyped_storage()
        if storage.data_ptr() not in mapped:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            mapped[storage.data_ptr()] = memory.add(raw)
        return mapped[storage.data_ptr()] + x.storage_offset() * x.element_size()

    values = [one.arguments[name] for name in record["arguments"]]
    with open(record["ptx"]) as file:
        return launch(
            file.read(),
            memory,
            [place(x) if isinstance(x, torch.Tensor) else x for x in values],
            grid=(one.grid, 1, 1),
            block=(32 * record["num_warps"], 1, 1),
            shared_bytes=record["shared"],
            seed=seed,
            timed=timed,
        )


def emulator(compiler: Compiler, monkeypatch, module: str, arch: str = "sm_80"):
    """(call, stats): call runs a launcher of `module` with its kernels as PTX of `arch`, stats fill
    with what each of them did."""
    from bwt.kernels import configs

    stats: dict[str, Stats] = {}

    def call(function, *args, seed=0, **options):
        def run(self, device):
            stats[self.name] = execute(compiler.find(self, arch), self, seed)

        monkeypatch.setattr(configs.Launch, "run", run)
        monkeypatch.setattr(import_module(module), "architecture", lambda device: arch)
        return getattr(import_module(module), function)(*args, **options)

    return call, stats


def kernels(launches: Iterable) -> set[str]:
    """Return the names of the kernel functions of some launches."""
    return {launch.kernel.__name__ for launch in launches}


def kernels_of_examples(module: str, examples: Iterable[dict]) -> set[str]:
    """Return the names of the kernel functions that some examples launch on an sm_80."""
    make = import_module(module).example_launches
    return set().union(*(kernels(make(arch="sm_80", **each).values()) for each in examples))


def assert_within_budget(records: dict[str, dict], budgets: dict[str, tuple], op: str, arch: str):
    """budgets: name of a kernel of the op -> registers and bytes of shared memory (NVIDIA only)."""
    assert records.keys() == {f"{op}_{name}" for name in budgets}
    for name, (registers, shared) in budgets.items():
        record = records[f"{op}_{name}"]
        assert record["stack"] == record["spills"] == 0, name
        if arch != "gfx942":
            assert record["registers"] <= registers and record["shared"] <= shared, name


def rounded(a: np.ndarray, mode: str) -> np.ndarray:
    """What a tensor core makes of an operand, in float64."""
    if mode == "tf32":  # it ignores the last 13 bits
        return (np.float32(a).view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    return torch.tensor(a).to(DTYPES[mode]).double().numpy()


def run_python(*command: str, **environment: str) -> subprocess.CompletedProcess:
    """Python at the root of the checkout, free to compile unless the environment says otherwise."""
    free = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-P", *command],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        env=free | environment,
    )


if __name__ == "__main__":
    _serve()
