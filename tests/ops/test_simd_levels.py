"""What depends on the instruction set, at each level that this machine has. A process chooses its
level once, so each has a process of its own."""

import importlib
import os
import subprocess
import sys

import pytest
from helpers import ROOT

# File -> which of its tests.
CHOSEN = {
    "test_attention.py": "(test_forward and native) or test_backward or test_huge",
    "test_attention_captures.py": "(test_values or test_gradients) and native or test_every",
    "test_attention_hidden.py": "native",
    "test_bijection_posterior.py": (
        "(test_noiseless or test_noisy or test_sharp or test_gradcheck) and native or test_sharp"
    ),
    "test_add_bias.py": "values or strides or empty or threads",
    "test_add_rms_norm.py": "values or strides or empty or threads",
    "test_gelu.py": "values or strides or digits or ends or threads",
    "test_hmm_filter.py": "(test_forward or test_impossible) and native or test_any",
    "test_hmm_filter_exact.py": "test_values and native or test_gradients and not torch",
    "test_hmm_filter_gradient.py": "test_any or counts or slope or (impossible and native)",
    "test_rms_norm.py": "values or strides or rows or empty or threads",
    "test_selective_scan.py": "(values and native) or beyond or softplus or states",
}


@pytest.mark.slow
@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
def test_every_level_of_this_machine(level):
    if importlib.import_module("bwt._C").simd() == level:
        pytest.skip(f"this process itself runs at {level}")
    environment = {**os.environ, "BWT_SIMD": level}
    code = "import torch, bwt._C; print(bwt._C.simd())"
    asked = [sys.executable, "-P", "-c", code]
    if subprocess.check_output(asked, env=environment, text=True).strip() != level:
        pytest.skip(f"this machine has no {level}")
    files = [str(ROOT / "tests/ops" / name) for name in CHOSEN]
    wanted = " or ".join(f"({name} and ({tests}))" for name, tests in CHOSEN.items())
    command = [sys.executable, "-P", "-m", "pytest", "-v", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        [*command, "-k", wanted], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
    for name in CHOSEN:
        assert f"{name}::" in done.stdout, f"no test of {name} was chosen"
