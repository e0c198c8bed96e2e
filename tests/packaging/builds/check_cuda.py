"""Builds bwt with a CUDA build of torch, loads the result, and compiles every Triton kernel.

    make check-cuda                   all architectures
    make check-cuda ARCHS="80 90"     these

It needs nvcc and no GPU: nothing is run. The environment under build/ takes several GB.
"""

import subprocess
import sys

from check_torch import promised
from venvs import Environment, Failed

# `==` would also take a CPU build such as 2.13.0+cpu where one is offered; the plain version is
# the registry's CUDA build.
TORCH = f"torch==={promised()[-1]}"
LOAD = """
import torch
assert torch.version.cuda, "pip took a CPU build of torch"
import bwt.ops, bwt._C_cuda
names = ("bijection_posterior", "bijection_posterior.noisy", "bijection_posterior_backward")
for name in names:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(f"bwt::{name}", "CUDA")
    assert has_kernel, f"bwt._C_cuda does not register {name}"
print(f"bwt._C_cuda loads with torch {torch.__version__} and registers {', '.join(names)}")
"""


def main(archs: list[str]) -> int:
    environment = Environment("cuda", TORCH)
    try:
        print(f"check-cuda: installing {TORCH}", flush=True)
        environment.create()
        print("check-cuda: building", flush=True)
        environment.install(BWT_CUDA="1")
        print("check-cuda:", environment.run("-c", LOAD), flush=True)
    except Failed as error:
        print(f"check-cuda: {error}")
        return 1
    command = [environment.python, "-m", "bwt.kernels.aot", "--summary"]
    restrict = ["--arch", *archs] if archs else []
    done = subprocess.run(
        [*command, *restrict], cwd=environment.folder, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout, end="")
    verdict = "every kernel compiles within its limits"
    print(f"check-cuda: {'there are faults' if done.returncode else verdict}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
