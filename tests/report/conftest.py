"""Runs that several tests of a report look at."""

import pytest

from bwt.cli import main

SHORT = ["--steps", "8", "--evaluations", "3", "--eval-sequences", "32", "--batch-size", "4"]
SMALL = ["--preset", "quick", "--layers", "2", "--width", "16", "--heads", "2", *SHORT, "--json"]


@pytest.fixture(scope="session")
def examined(tmp_path_factory):
    """Two small runs with all that there is to show."""
    root = tmp_path_factory.mktemp("story")
    for name, flags in {
        "pairs": ["bijection", "--num-symbols", "4", "--num-pairs", "6", "--replacement"],
        "hmm": ["hmm", "--length", "4"],
    }.items():
        assert main(["train", *flags, "--out", str(root / name), *SMALL]) == 0
        for command in ("geometry", "ablate"):
            assert main([command, str(root / name), "--sequences", "32", "--json"]) == 0
    return root
