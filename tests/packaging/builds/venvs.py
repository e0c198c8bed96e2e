"""Virtual environments under build/ that hold another build of torch than the developer's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGED = ("bwt", "csrc", "kernels", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BUILT = shutil.ignore_patterns("*.so", "__pycache__")


class Failed(RuntimeError):
    pass


class Environment:
    def __init__(self, name: str, torch: str):
        """torch: what pip is asked for, such as "torch==2.10.0"."""
        self.folder = ROOT / "build" / name
        self.python = self.folder / "bin/python"
        self.requirements = [torch, *PROJECT["dependencies"]]
        self.requirements += PROJECT["optional-dependencies"]["build"]

    def create(self) -> None:
        stamp, wanted = self.folder / "requirements.txt", "\n".join(self.requirements)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        subprocess.run([sys.executable, "-m", "venv", self.folder], check=True)
        # Together, so that pip settles on what this torch can live with.
        self.run("-m", "pip", "install", "--quiet", *self.requirements)
        stamp.write_text(wanted)

    def install(self, **environment: str) -> None:
        """Builds in a copy: the extensions in the checkout are those of the developer's torch."""
        source = self.folder / "source"
        for name in PACKAGED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=BUILT, dirs_exist_ok=True)
            else:
                shutil.copy2(ROOT / name, source / name)
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall"]
        self.run("-m", "pip", "install", *options, str(source), **environment)

    def run(self, *arguments: str, **environment: str) -> str:
        """Python here, with the installed package and not the checkout's; returns what it prints.

        Raises:
            Failed: with its last line, and where to read the others.
        """
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONSAFEPATH": "1"} | environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            (self.folder / "failed.log").write_text(done.stdout + done.stderr)
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
            raise Failed(f"{last} (all of it: {self.folder / 'failed.log'})")
        return done.stdout.strip()
