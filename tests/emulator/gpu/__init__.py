"""A GPU made of host memory and of the PTX executor: code for GPUs runs where there is none.

    python tests/emulator/gpu [options of pytest]

What runs as on a GPU machine: tensors on "cuda" with torch's own dispatcher, autograd, autocast
and optimizers; the choice of a backend; Triton's launch path, which binds, specialises, compiles
for sm_80 and packs arguments in C; and the compiled PTX. What does not: torch's own CUDA kernels
(its ops run on the CPU), ptxas, timing, streams side by side, anything of sm_90 and later.

Mixing devices is an error as on a GPU. `device.counts` tells how often the host waited for the
device and how often something was copied to it, `device.launches` how many kernels and graphs it
launched. Graphs are captured and replayed, and refuse what CUDA's refuse: see graphs.py.
"""
