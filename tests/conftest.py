"""Common fixtures."""

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


def pytest_terminal_summary(terminalreporter):
    if not torch.cuda.is_available():
        terminalreporter.write_line(
            "No CUDA device: GPU kernels were compiled and emulated, not run on a GPU."
        )
