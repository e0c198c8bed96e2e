"""What is installed, and what works without the native extension."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

import pytest
import tomllib
import torch
from helpers import ROOT
from helpers.nvcc import NVCC
from packaging.requirements import Requirement

from bwt import ops

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=environment or None
    )


def test_package_list_matches_the_tree():
    folders = [path.parent for path in ROOT.glob("bwt/**/__init__.py")]
    on_disk = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    folders = [path.parent for path in ROOT.glob("kernels/**/__init__.py")]
    on_disk |= {".".join(("bwt", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == on_disk


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The files of the project alone, without what earlier builds left in the checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: nothing tells which files belong to the project")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    folder = tmp_path_factory.mktemp("source")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("sdist")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})"
    environment = {**os.environ, "BWT_CUDA": "0"}
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, env=environment)
    (path,) = out.glob("*.tar.gz")
    return path


@pytest.mark.build
def test_the_source_distribution_is_whole(source, sdist):
    """Made where CUDA is not: all sources of the CUDA extension, the kernels and the tests."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("csrc", "kernels", "bwt", "tests", "benchmarks", "examples")
    wanted = [path for name in folders for path in (source / name).rglob("*") if path.is_file()]
    assert len(wanted) > 200
    missing = {str(path.relative_to(source)) for path in wanted} - held
    pages = {path.name for path in source.glob("*.md")} | {"CITATION.cff"}
    assert {"README.md", "CHANGELOG.md"} <= pages
    assert missing == set() and {"setup.py", "Makefile", "LICENSE", *pages} <= held
    assert "results/README.md" in held


def sections(library):
    """Those of the library itself; code for a GPU is in one of them, with a symbol table inside."""
    return subprocess.run(
        ["readelf", "--sections", "--wide", library], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built by pip, with CUDA where there is a compiler."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    cuda = {"BWT_CUDA": "1" if NVCC else "0", "TORCH_CUDA_ARCH_LIST": "8.0"}
    # The compilers as they are called, but told last not to optimise: that takes minutes.
    compiler = out / "c++"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX", "c++")} "$@" -O0\n')
    compiler.chmod(0o755)
    hasty = {"CXX": str(compiler), "NVCC_APPEND_FLAGS": "-Xcicc -O0 -Xptxas -O0 -Xcompiler -O0"}
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", out, sdist],
        check=True,
        cwd=out,
        env={**os.environ, **cuda, **hasty},
    )
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.build
def test_a_wheel_from_the_source_distribution(wheel, tmp_path):
    """Everything under bwt/, the Triton kernels as bwt.kernels, abi3, stripped, and nothing in it
    tells where it was built."""
    assert "-cp310-abi3-" in wheel.name
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"bwt"}
    assert {"bwt/kernels/__init__.py", "bwt/kernels/attention/short.py"} <= set(names)
    assert "bwt/py.typed" in names
    libraries = ["bwt/_C.abi3.so"] + (["bwt/_C_cuda.abi3.so"] if NVCC else [])
    assert [name for name in sorted(names) if name.endswith(".so")] == libraries
    for name in libraries:
        data = archive.read(name)
        assert ".symtab" not in sections(archive.extract(name, tmp_path)), f"{name} is not stripped"
        for path in (ROOT, tempfile.gettempdir(), torch.__path__[0], sysconfig.get_path("purelib")):
            assert os.fsencode(path) not in data, f"{name} tells of {path}"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A function that runs the command `bwt` of the wheel, far from the checkout; the folder in
    which it works is its attribute."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", folder / "site", wheel], check=True)
    (folder / "work").mkdir()

    def run(*words):
        done = subprocess.run(
            [folder / "site/bin/bwt", *words],
            cwd=folder / "work",
            env={**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.folder = folder
    return run


@pytest.mark.build
def test_the_wheel_works_outside_the_checkout(installed):
    site = installed.folder / "site"
    assert (site / "bwt/py.typed").exists() and not (site / "kernels").exists()
    assert "automatic for cpu tensors" in installed("env")
    words = "train bijection --preset quick --num-symbols 4 --width 16 --layers 1 --steps 12"
    words += " --evaluations 3 --eval-sequences 64 --batch-size 8 --device cpu --out run --report"
    assert installed(*words.split()).endswith("open run/report.html in a browser\n")
    environment = json.loads((installed.folder / "work/run/environment.json").read_text())
    assert environment["commit"] is None  # not that of a checkout
    assert environment["ops"]["attention"]["native"]["usable"]
    assert "bwt report run" in installed("geometry", "run", "--sequences", "32", "--device", "cpu")
    assert "run/report.html" in installed("report", "run")
    page = (installed.folder / "work/run/report.html").read_text()
    scripts = (ROOT / "bwt/report/interactive").glob("*.js")
    assert all(path.read_text().strip()[:200] in page for path in scripts)
    assert "attention_short_forward" in installed("kernels", "attention")
    assert "A100" in installed("kernels", "--roofline")  # counted_work.json


def test_bare_kernels_import_is_refused():
    done = subprocess.run(
        [sys.executable, "-c", "import kernels"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode != 0 and "imported as bwt.kernels" in done.stderr


@pytest.fixture
def without_extension(tmp_path):
    """A copy of the package as it is before anything is built."""
    for package, source in (("bwt", "bwt"), ("bwt/kernels", "kernels")):
        for path in (ROOT / source).rglob("*.py"):
            target = tmp_path / package / path.relative_to(ROOT / source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path


def test_import_works_without_the_extension_and_a_native_call_says_how_to_build_it(
    without_extension,
):
    code = (
        # An editable install would find the built extension by name.
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        f"sys.path.insert(0, {str(without_extension)!r}); import bwt, torch\n"
        f"assert bwt.__file__.startswith({str(without_extension)!r})\n"
        "keys = torch.tensor([[0, 1]])\n"
        "print(bwt.ops.bijection_posterior(keys, keys, 2, backend='torch').entropy.tolist())\n"
        "bwt.ops.bijection_posterior(keys, keys, 2)"
    )
    done = run(code)
    assert done.stdout.strip() == "[[1.0, 0.0]]"
    last = done.stderr.strip().splitlines()[-1]
    assert "native: bwt._C is not built; build it with `make build` or `pip install -e .`" in last


def test_reference_needs_neither_torch_nor_triton():
    code = "import bwt, sys; bwt.reference.bijection_posterior; print('torch' in sys.modules)"
    assert run(code).stdout.strip() == "False"


@pytest.mark.parametrize(
    "choice,message", [("2", "BWT_CUDA='2': expected auto, 1 or 0"), ("1", "nvcc was not found")]
)
def test_a_build_that_cannot_be_is_refused(choice, message):
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"BWT_CUDA": choice, "PATH": "/nonexistent"},
    )
    assert done.returncode != 0 and message in done.stderr


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/packaging/builds"))


def test_the_releases_that_are_checked_are_the_ends_of_the_promise(tools):
    from check_torch import promised

    requirement = next(x for x in PYPROJECT["project"]["dependencies"] if x.startswith("torch"))
    inside = Requirement(requirement).specifier
    lowest, highest = promised()
    minor = [int(release.split(".")[1]) for release in (lowest, highest)]
    assert lowest in inside and f"2.{minor[0] - 1}.9" not in inside
    assert highest in inside and f"2.{minor[1] + 1}.0" not in inside


def test_a_sound_build_passes_the_smoke_test_and_a_wrong_op_does_not(tools, monkeypatch, capsys):
    import smoke

    smoke.main()
    assert "every op of bwt" in capsys.readouterr().out
    right = ops.gelu
    monkeypatch.setattr(ops, "gelu", lambda x: right(x) + 0.1 * x.detach())
    with pytest.raises(SystemExit, match="gelu is off by"):
        smoke.main()
    monkeypatch.setattr(ops, "gelu", lambda x: right(x) + 0.1 * (x - x.detach()))
    with pytest.raises(SystemExit, match="gelu, gradient 0 is off by"):
        smoke.main()
