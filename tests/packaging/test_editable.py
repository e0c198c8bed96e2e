"""An editable install, imported from folders that hold something called bwt."""

import os
import subprocess
import sys
from pathlib import Path

import bwt

PROBE = "import bwt; print(bwt.load.__module__, bwt.__file__)"


def imported_from(folder, **environment):
    """Run the probe with a folder as working directory, which Python searches first."""
    words = [sys.executable, "-c", PROBE]
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_clone_called_bwt_does_not_hide_the_package(tmp_path):
    for folder in ("bwt/kernels", "bwt/tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bwt/kernels/__init__.py").touch()
    module, file = imported_from(tmp_path)
    assert module == "bwt.runs.loading" and Path(file).samefile(bwt.__file__)


def test_a_copy_of_the_package_that_the_user_puts_first_is_taken(tmp_path):
    (tmp_path / "copy/bwt").mkdir(parents=True)
    (tmp_path / "copy/bwt/__init__.py").write_text("def load(): ...\n")
    module, file = imported_from(tmp_path, PYTHONPATH=str(tmp_path / "copy"))
    assert module == "bwt" and Path(file).parent.samefile(tmp_path / "copy/bwt")
