"""An emulated GPU made of host memory and the PTX executor; see the README of the folder above.

    python tests/emulator/gpu [options of pytest]

Mixing devices is an error as on a GPU. `device.counts` returns how often the host waited for the
device and how often something was copied to it, `device.launches` how many kernels and graphs it
launched. Graphs are captured and replayed, and refuse what CUDA's refuse: see graphs.py.
"""
