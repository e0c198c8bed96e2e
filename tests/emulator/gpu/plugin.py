"""pytest -p emulator.gpu.plugin: the tests find a CUDA device."""

import os
import sys

from . import device

device.load()
os.environ.pop("TRITON_INTERPRET", None)

import pytest  # noqa: E402

from . import graphs, torch_cuda, triton_driver  # noqa: E402

torch_cuda.install(int(os.environ.get("BWT_EMULATED_GPUS", "1")))
triton_driver.install()

from helpers import nvcc  # noqa: E402

from emulator import cuda_runtime  # noqa: E402

if nvcc.NVCC:  # without it bwt does as it does on a GPU machine without it
    cuda_runtime.load()
    cuda_runtime.capture_graphs(device.load().emulated_refuses, graphs.launched)


def pytest_configure(config):
    """Nothing may quietly be served by another backend than on a GPU machine that has all."""
    if nvcc.NVCC:
        config.addinivalue_line("filterwarnings", "error:.*runs in plain torch:RuntimeWarning")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    session.config.status = int(session.exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Ends at once: torch's threads for the device's backward pass would still ask for Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(config.status)
