"""What is installed, and what works without the native extension."""

import subprocess
import sys
import zipfile

import pytest
import tomllib
from nvcc import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=environment or None
    )


def test_package_list_matches_the_tree():
    on_disk = {
        ".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("bwt/**/__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == on_disk | {"bwt.kernels"}


def test_wheel_holds_one_namespace(tmp_path):
    """A wheel built by pip: everything under bwt/, the Triton kernels as bwt.kernels, abi3."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", tmp_path, ROOT], check=True, cwd=tmp_path
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp310-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"bwt"}
    assert "bwt/kernels/__init__.py" in names and "bwt/_C.abi3.so" in names


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
