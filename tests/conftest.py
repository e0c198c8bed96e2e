"""Common fixtures."""

from functools import partial

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poison_uninitialised_memory(monkeypatch):
    """torch.empty returns NaN, so that a kernel that forgets an element is seen. Native kernels
    allocate in C++ and are covered by torch's own switch."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session")
def interpreter():
    from triton_aot import Interpreter

    worker = Interpreter()
    yield worker
    worker.close()


@pytest.fixture(params=["interpreted", pytest.param("gpu", marks=pytest.mark.gpu)])
def call(request):
    """Calls a launcher of the test file's MODULE by name on CPU tensors, returns CPU tensors."""
    from triton_aot import call_on_gpu

    if request.param == "interpreted":
        return partial(request.getfixturevalue("interpreter").call, request.module.MODULE)
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return partial(call_on_gpu, request.module.MODULE)


def pytest_terminal_summary(terminalreporter):
    if not torch.cuda.is_available():
        terminalreporter.write_line(
            "No CUDA device: GPU kernels were compiled and emulated, not run on a GPU."
        )
