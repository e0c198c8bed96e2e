"""Common fixtures."""

import importlib
import os
import tempfile
from collections import Counter
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pytest
import torch
from bwt.kernels import configs
from helpers import oracles

_oracles = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption(
        "--expected-skips",
        type=Path,
        metavar="FILE",
        help="fail if a test is skipped for a reason that no line of this file matches",
    )


def pytest_configure(config):
    # The first process makes the folder, those that it starts find it.
    if oracles.FOLDER not in os.environ:
        config.stash[_oracles] = tempfile.TemporaryDirectory()
        os.environ[oracles.FOLDER] = config.stash[_oracles].name


def pytest_unconfigure(config):
    if folder := config.stash.get(_oracles, None):
        del os.environ[oracles.FOLDER]
        folder.cleanup()


# Side by side, each process has its share of the cores, and so do those that it starts. Tests of
# threads set their number themselves.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    share = max(1, (os.cpu_count() or 1) // workers)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
    torch.set_num_threads(share)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poison_uninitialised_memory(monkeypatch):
    """torch.empty returns NaN, so that a kernel that forgets an element is seen. Native kernels
    allocate in C++ and are covered by torch's own switch."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    # The public function loads torch._inductor, which takes seconds.
    before = torch.are_deterministic_algorithms_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    yield
    torch._C._set_deterministic_algorithms(before)


@pytest.fixture(autouse=True)
def devices_are_asked_again():
    """Each test may pretend others; what they are is remembered otherwise."""
    configs.forget()
    yield
    configs.forget()


@pytest.fixture(scope="session")
def interpreter():
    from helpers.triton_aot import Interpreter

    worker = Interpreter()
    yield worker
    worker.close()


@pytest.fixture(params=["interpreted", pytest.param("gpu", marks=pytest.mark.gpu)])
def call(request):
    """Calls a launcher of the test file's MODULE by name on CPU tensors, returns CPU tensors."""
    from bwt.tuning import device

    if request.param == "interpreted":
        return partial(request.getfixturevalue("interpreter").call, request.module.MODULE)
    return partial(device.call, request.module.MODULE)


@pytest.fixture(scope="module")
def benchmark_scripts():
    """Those of benchmarks/ can be imported, as they import each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
        yield


@pytest.fixture
def stages(benchmark_scripts):
    """Of `make gpu`."""
    return importlib.import_module("gpu_stages")


@pytest.fixture
def emulated_device(pytestconfig):
    """The module emulator.gpu.device, where its GPU is in use."""
    if not pytestconfig.pluginmanager.hasplugin("emulator.gpu.plugin"):
        pytest.skip("looks into the emulated GPU")
    from emulator.gpu import device

    return device


def pytest_collection_modifyitems(config, items):
    emulated = config.pluginmanager.hasplugin("emulator.gpu.plugin")
    for item in items:
        if emulated and item.get_closest_marker("real_gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device that is not emulated"))
        elif item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def skip_reasons(config) -> Counter[str]:
    """Count the skipped tests of a session by their reasons."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)


def unexpected(reasons, config) -> list[str]:
    """Return the reasons that are not in the file of `--expected-skips`, if there is one."""
    if not (path := config.getoption("expected_skips")):
        return []
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [reason for reason in reasons if not any(fnmatch(reason, line) for line in lines)]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if unexpected(skip_reasons(session.config), session.config):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    reasons = skip_reasons(terminalreporter.config)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
    for reason in unexpected(reasons, terminalreporter.config):
        terminalreporter.write_line(f"ERROR: no test may be skipped because: {reason}", red=True)
    if terminalreporter.config.pluginmanager.hasplugin("emulator.gpu.plugin"):
        terminalreporter.write_line("The CUDA device was emulated: no timing, no sm_90 and later.")
    elif not torch.cuda.is_available():
        terminalreporter.write_line(
            "No CUDA device: GPU kernels were compiled and emulated, not run on a GPU."
        )
