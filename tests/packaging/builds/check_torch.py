"""Builds and tries bwt with the lowest and the highest torch that pyproject.toml promises.

    make check-torch                      the lowest and the highest
    make check-torch RELEASES="2.12.0"    others

Each release gets an environment of its own under build/. pip takes the build of torch that its
configuration offers; where that is a CUDA build, it brings several GB.
"""

import argparse
import re
import sys
import tempfile

from venvs import PROJECT, ROOT, Environment, Failed

TRAIN = ("-m", "bwt", "train", "bijection", "--preset", "quick", "--steps", "5")


def promised() -> list[str]:
    """The lowest release, and the highest one below the bound."""
    requirement = next(each for each in PROJECT["dependencies"] if each.startswith("torch"))
    lowest, bound = re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", requirement).groups()
    return [f"2.{lowest}.0", f"2.{int(bound) - 1}.0"]


def check(release: str) -> dict[str, str]:
    row = {"torch": release, "built": "-", "ops": "-", "train": "-", "triton": "-"}
    environment = Environment(f"torch-{release}", f"torch=={release}")
    steps = {
        "built": lambda: environment.install(BWT_CUDA="0"),
        "ops": lambda: environment.run(str(ROOT / "tests/packaging/builds/smoke.py")),
        "train": lambda: train(environment),
    }
    try:
        print(f"torch {release}: installing", flush=True)
        environment.create()
        versions = "import torch, triton; print(torch.__version__, triton.__version__)"
        row["torch"], row["triton"] = environment.run("-c", versions).split()
        for name, step in steps.items():
            print(f"torch {release}: {name}", flush=True)
            row[name] = "failed"
            step()
            row[name] = "ok"
    except Failed as error:
        row["why"] = str(error)
    return row


def train(environment: Environment) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment.run(*TRAIN, "--out", f"{folder}/run", CUDA_VISIBLE_DEVICES="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", nargs="*", default=promised())
    rows = [check(release) for release in parser.parse_args().release]
    for row in ({name: name for name in rows[0]}, *rows):
        print("".join(f"{row[name]:<16}" for name in ("torch", "triton", "built", "ops", "train")))
    failures = [f"torch {row['torch']}: {row['why']}" for row in rows if "why" in row]
    tried = ", ".join(row["torch"] for row in rows)
    print("\n".join(failures) or f"check-torch: bwt builds and works with torch {tried}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
