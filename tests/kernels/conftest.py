"""Kernels that are compiled ahead of time, shared by the tests of one process."""

import pytest


@pytest.fixture(scope="session")
def compiler(tmp_path_factory):
    from helpers.triton_aot import Compiler

    return Compiler(tmp_path_factory.mktemp("aot"))
