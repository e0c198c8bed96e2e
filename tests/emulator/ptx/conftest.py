"""Compiled samples for the executor's own tests."""

import pytest

pytest.register_assert_rewrite("emulator.ptx.testing")

from emulator.ptx.testing import compile_cuda, compile_triton  # noqa: E402


@pytest.fixture(scope="session")
def cuda(tmp_path_factory):
    """The PTX of all CUDA samples."""
    text = compile_cuda(tmp_path_factory.mktemp("cuda"))
    if text is None:
        pytest.skip("nvcc is not installed")
    return text


@pytest.fixture(scope="session")
def triton_kernels(tmp_path_factory):
    """Compiled Triton samples by name."""
    pytest.importorskip("triton", reason="Triton is not installed")
    return compile_triton(tmp_path_factory.mktemp("triton"))
