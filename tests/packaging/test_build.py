"""What setup.py builds and make rebuilds, on machines that differ in torch and nvcc."""

import os
import re
import runpy
import subprocess
import sys

import pytest
import setuptools
import torch
from helpers import ROOT

ARCHITECTURES = {"12.4": (50, 80, 86, 89, 90), "13.0": (75, 80, 90, 100, 120)}


@pytest.fixture
def toolkit(tmp_path):
    """A function that makes a folder with an nvcc that only answers questions."""

    def make(release="13.0", libraries="lib64"):
        home = tmp_path / f"cuda-{release}"
        for folder in ("bin", libraries):
            (home / folder).mkdir(parents=True)
        (home / libraries / "libcudart.so").touch()
        known = "\n".join(f"compute_{number}" for number in ARCHITECTURES[release])
        (home / "bin/nvcc").write_text(
            f"""#!/bin/sh
case "$1" in
--list-gpu-arch) echo "{known}" ;;
--version) echo "Cuda compilation tools, release {release}, V{release}.88" ;;
-dryrun) echo '#$ TOP={home}/bin/..' >&2 ;;
esac
"""
        )
        (home / "bin/nvcc").chmod(0o755)
        return home

    return make


@pytest.fixture
def setup(monkeypatch):
    """A function that reads setup.py where torch has this CUDA (or None) and nvcc is at home."""

    def read(cuda, home=None, **environment):
        """(extensions by name, what each -gencode is for)"""
        handed = {}
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(setuptools, "setup", lambda **options: handed.update(options))
        for name in ("BWT_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin:/bin" if home else "/nonexistent")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        names = runpy.run_path(str(ROOT / "setup.py"))
        extensions = {module.name: module for module in handed["ext_modules"]}
        flags = names["gencode_flags"]() if "bwt._C_cuda" in extensions else []
        return extensions, [flag.partition(",code=")[2] for flag in flags]

    return read


def test_the_default_architectures_are_those_nvcc_knows(toolkit, setup):
    _, targets = setup("12.4", toolkit("12.4"))
    assert targets == ["sm_80", "sm_90", "compute_90"]
    _, targets = setup("13.0", toolkit("13.0"))
    assert targets == ["sm_80", "sm_90", "sm_100", "compute_100"]


def test_a_list_of_architectures_is_respected(toolkit, setup):
    home = toolkit("13.0")
    for wanted in ("7.5;12.0+PTX", " 7.5, 12.0+PTX ", "7.5 12.0+PTX"):
        _, targets = setup("13.0", home, TORCH_CUDA_ARCH_LIST=wanted)
        assert targets == ["sm_75", "sm_120", "compute_120"]
    _, targets = setup("13.0", home, TORCH_CUDA_ARCH_LIST="9.0a")
    assert targets == ["sm_90a"]


def test_the_extension_knows_what_it_was_compiled_for(toolkit, setup):
    extensions, _ = setup("12.4", toolkit("12.4"))
    flags = extensions["bwt._C_cuda"].extra_compile_args["cxx"]
    assert "-DBWT_CUDA_TARGETS=sm_80,sm_90,compute_90" in flags


@pytest.mark.parametrize("wanted", ["Hopper", "10.0", "8.0;;sm_90", "80"])
def test_a_wrong_list_is_answered_in_one_line(toolkit, setup, wanted):
    complaint = f"LIST has '{wanted.split(';')[-1]}': this nvcc compiles for 5.0, 8.0"
    with pytest.raises(SystemExit, match=complaint) as caught:
        setup("12.4", toolkit("12.4"), TORCH_CUDA_ARCH_LIST=wanted)
    assert "\n" not in str(caught.value)


def test_libraries_are_those_torch_has(toolkit, setup):
    home = toolkit()
    extensions, _ = setup("13.0", home)
    assert extensions["bwt._C_cuda"].libraries[:3] == ["cudart", "c10_cuda", "torch_cuda"]
    extensions, _ = setup(None, home, BWT_CUDA="1")
    assert not {"c10_cuda", "torch_cuda"} & set(extensions["bwt._C_cuda"].libraries)


@pytest.mark.parametrize("libraries", ["lib64", "lib", "targets/sbsa-linux/lib"])
def test_the_runtime_is_found_in_the_toolkit_of_nvcc(toolkit, setup, libraries):
    extensions, _ = setup("13.0", toolkit(libraries=libraries))
    module = extensions["bwt._C_cuda"]
    for folders in (module.library_dirs, module.runtime_library_dirs):
        assert any(folder.endswith(f"cuda-13.0/{libraries}") for folder in folders)


@pytest.mark.parametrize(
    "cuda,release,built",
    [
        ("13.0", "13.0", True),
        ("12.8", "13.0", False),
        ("12.8", "12.4", True),
        (None, "13.0", False),
    ],
)
def test_auto_builds_for_the_cuda_of_torch_alone(toolkit, setup, cuda, release, built):
    extensions, _ = setup(cuda, toolkit(release))
    assert ("bwt._C_cuda" in extensions) == built
    extensions, _ = setup(cuda, home=None)
    assert list(extensions) == ["bwt._C"]


def test_a_mac_gets_one_library_for_its_own_processor(setup, monkeypatch):
    """Threads are torch's, so that no OpenMP is asked for; levels of SIMD are chosen in the source,
    so that no -march is."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setenv("ARCHFLAGS", "")  # so that what setup.py sets is taken back
    monkeypatch.delenv("ARCHFLAGS")
    extensions, _ = setup(cuda=None)
    assert list(extensions) == ["bwt._C"] and os.environ["ARCHFLAGS"] == "-arch arm64"
    module = extensions["bwt._C"]
    assert module.extra_link_args == ["-Wl,-x"] and "gomp" not in module.libraries
    flags = module.extra_compile_args["cxx"]
    assert "-std=c++20" in flags and "-O3" in flags
    assert not [flag for flag in flags if re.match("-m|-fopenmp|-Xpreprocessor", flag)]


@pytest.fixture
def make(tmp_path):
    """Runs `make build` in an environment whose pip only counts and whose torch is a version."""
    venv, site = tmp_path / "venv", tmp_path / "site"
    (venv / "bin").mkdir(parents=True)
    (site / "torch").mkdir(parents=True)
    (site / "torch/__init__.py").touch()
    scripts = {
        "python": f'exec env PYTHONPATH="{site}" "{sys.executable}" -P "$@"',
        "pip": f'echo run >> "{venv}/log"; echo "WARNING: $0" >&2; exit ${{PIP_CODE:-0}}',
    }
    for name, script in scripts.items():
        (venv / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (venv / "bin" / name).chmod(0o755)
    (venv / ".dependencies").touch()

    def build(cuda=None, path="/usr/bin:/bin", options=(), **environment):
        """What make says and prints. How often pip was run is in venv/log."""
        version = f"__version__ = '2.13.0'\ncuda = {cuda!r}\n"
        (site / "torch/version.py").write_text(version)
        (venv / "log").write_text("")
        done = subprocess.run(
            ["make", "build", f"VENV={venv}", *options],
            cwd=ROOT,
            env={"PATH": path} | environment,
            capture_output=True,
            text=True,
        )
        done.builds = len((venv / "log").read_text().split())
        return done

    return build


def test_make_builds_again_when_the_choice_changes_and_only_then(make, toolkit):
    def builds(**how):
        done = make(**how)
        assert done.returncode == 0
        return done.builds

    with_nvcc = f"{toolkit()}/bin:/usr/bin:/bin"
    assert builds() == 1 and builds() == 0
    assert builds(path=with_nvcc) == 0  # a CPU build of torch has no use for it
    assert builds(cuda="13.0") == 1 and builds(cuda="13.0") == 0
    assert builds(cuda="13.0", path=with_nvcc) == 1 and builds(cuda="13.0", path=with_nvcc) == 0
    assert builds(cuda="13.0", path=with_nvcc, BWT_CUDA="0") == 1


@pytest.mark.parametrize("options", [(), ("-j2",), ("-j",)])
def test_a_phase_is_a_line_with_its_time(make, options):
    done = make(options=options)
    assert done.returncode == 0 and done.stderr == ""
    assert re.fullmatch(r"building the native library \.\.\. \d+ s\n", done.stdout)


@pytest.mark.parametrize("options", [(), ("-j2",)])
def test_a_phase_that_fails_shows_all_and_keeps_it(make, options, tmp_path):
    done = make(options=options, PIP_CODE="7")
    log = tmp_path / "venv/build.log"
    assert done.returncode == 2 and done.stdout == "building the native library ... failed:\n"
    assert done.stderr.startswith(log.read_text()) and "WARNING" in log.read_text()
    assert f"(kept in {log})" in done.stderr and "Error 7" in done.stderr
    again = make(options=options)
    assert again.returncode == 0 and again.builds == 1
