"""python tests/emulator/gpu [options of pytest]: the tests that want a GPU, on an emulated one."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS))

from emulator.gpu import device  # noqa: E402

PYTEST = [sys.executable, "-P", "-m", "pytest", "-p", "emulator.gpu.plugin", "-m", "gpu"]


def run(*arguments: str, gpus: int) -> int:
    environment = os.environ | {"BWT_EMULATED_GPUS": str(gpus)}
    return subprocess.run([*PYTEST, *arguments], cwd=TESTS.parent, env=environment).returncode


def main(options: list[str]) -> int:
    if device.torch_is_for_gpus():
        print("torch is built for GPUs: its tests are run by pytest itself where there is one")
        return 0
    codes = [
        run(str(TESTS / "gpu"), str(TESTS / "benchmarks"), *options, gpus=1),
        run(str(TESTS / "gpu/test_gpu_emulation.py"), *options, gpus=2),
    ]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
