"""A small executor of sm_80 PTX on NumPy, to check CUDA and Triton kernels without a GPU.

    from emulator.ptx import Memory, launch

    mem = Memory()
    x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    args = [mem.add(x), mem.add(out), 100]
    stats = launch(text, mem, args, grid=(4, 1, 1), block=(32, 1, 1))

Results appear in the arrays. A launch raises PTXError for what a GPU would punish or hide:
accesses out of bounds or misaligned, races and uninitialised reads in shared memory, cp.async
data used too early, barriers and warp operations in divergent code, endless loops, registers
read before they are written. Anything the executor does not know is an error too.

`launch` returns a `Stats` with the instructions, memory sectors and shared-memory wavefronts.

Not checked: races in global memory, and races in shared memory between lanes of one warp.
Module-level `.global` variables start anew with each launch.
"""

from .errors import PTXError
from .launching import launch
from .memory import Memory
from .parser import parse
from .stats import Stats

__all__ = ["Memory", "PTXError", "Stats", "launch", "parse"]
