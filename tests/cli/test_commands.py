"""`bwt bench` and `bwt kernels`."""

import json
import shutil
import subprocess
import sys

import pytest
from bwt.kernels import configs
from helpers import ROOT

from bwt.cli import main
from bwt.cli.commands import bench, kernels
from bwt.ops import _dispatch


def test_every_kernel_of_every_op(capsys):
    assert main(["kernels", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    pairs = {(row["op"], row["backend"]) for row in found}
    assert pairs == {(op, name) for op, names in _dispatch.BACKENDS.items() for name in names}
    assert all((ROOT / row["file"]).exists() for row in found)
    in_table = {key[0] for key in configs.TABLE}
    triton = {row["op"] for row in found if row["backend"] == "triton" and row["targets"]}
    assert in_table == triton
    short = next(row for row in found if row["kernel"] == "attention_short_forward")
    assert short["configurations"] > 1 and set(short["targets"]) == set(configs.ARCHITECTURES)
    assert {"noisy_kernel", "noiseless_kernel"} <= {row["kernel"] for row in found}


def test_kernels_tell_what_has_been_compiled(tmp_path, capsys):
    from bwt.kernels import aot

    name = next(iter(aot.specialisations("hmm_filter", "sm_80")))
    (tmp_path / "resources.json").write_text(json.dumps([{"name": name, "arch": "sm_80"}]))
    assert main(["kernels", "hmm_filter", "--aot", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    compiled = [x for row in rows if row["backend"] == "triton" for x in row["compiled_for"]]
    assert len(compiled) == 1 and compiled[0].startswith("sm_80 (1 of ")


def test_kernels_where_there_is_no_triton(monkeypatch):
    monkeypatch.setattr(kernels._library, "triton_fault", "triton is not installed")
    monkeypatch.setitem(sys.modules, "bwt.kernels.aot", None)  # cannot be imported
    rows = {row["op"]: row for row in kernels.collect() if row["backend"] == "triton"}
    assert rows.keys() == {op for op, names in _dispatch.BACKENDS.items() if "triton" in names}
    assert all((ROOT / row["file"]).exists() and not row["targets"] for row in rows.values())
    assert rows["attention"]["file"] == "kernels/attention"


def test_kernels_as_a_table(capsys):
    rows = kernels.collect()
    text = kernels.render(rows)
    assert all(row["kernel"] in text and row["file"] in text for row in rows)
    assert main(["kernels", "chess"]) == 2
    assert "no op 'chess'; choose from add_bias" in capsys.readouterr().err


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """With benchmarks that only say what they were given and end as they are told."""
    (tmp_path / "bwt").mkdir()
    (tmp_path / "benchmarks").mkdir()
    code = (
        "import json, sys; print(json.dumps(sys.argv[1:]))\n"
        "sys.exit(next((int(x[6:]) for x in sys.argv if x.startswith('--end=')), 0))"
    )
    for name in ("bench_echo", "bench_other", "compare"):
        (tmp_path / f"benchmarks/{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bench_runs_the_files_of_the_checkout(checkout, capfd):
    assert main(["bench", "echo", "--cases", "a", "b"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == '["--cases", "a", "b"]'
    assert main(["bench", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == [["--json"], ["--json"]]
    assert main(["bench", "echo", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == [["--json"]]
    assert main(["bench", "echo", "--end=1"]) == 1
    assert main(["bench", "--quick", "--cold", "echo", "--cases", "a"]) == 0
    words = '["--cases", "a", "--quick", "--cold"]'
    assert capfd.readouterr().out.splitlines()[-1] == words


def test_bench_goes_on_after_a_failure_and_says_so_at_the_end(checkout, capfd):
    assert main(["bench", "echo", "other", "--end=3"]) == 3
    lines = capfd.readouterr().out.splitlines()
    assert lines.count('["--end=3"]') == 2
    assert lines[-2:] == [
        "echo: a target is missed beyond noise (exit code 3)",
        "other: a target is missed beyond noise (exit code 3)",
    ]


def test_the_gravest_exit_code_is_taken():
    assert bench._gravest([0, 0]) == 0
    assert bench._gravest([0, 3, 4, 3]) == 4
    assert bench._gravest([3, 1, 4]) == 1
    assert bench._gravest([1, 2]) == 2
    assert bench._gravest([1, -11, 2]) == -11


@pytest.mark.parametrize(
    "words",
    [
        ["--compare", "HEAD~1", "echo", "other", "--cases", "a"],
        ["echo", "other", "--cases", "a", "--compare", "HEAD~1"],
    ],
)
def test_bench_hands_a_comparison_over(checkout, capfd, words):
    assert main(["bench", *words]) == 0
    expected = ["HEAD~1", "echo", "other", "--cases", "a"]
    assert json.loads(capfd.readouterr().out) == expected
    assert main(["bench", "--json", *words, "--end=4"]) == 4
    assert json.loads(capfd.readouterr().out) == [*expected, "--end=4", "--json"]


def test_bench_compare_needs_something(checkout, capfd):
    assert main(["bench", "echo", "--compare"]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "--compare: expected one argument" in error


def test_bench_names_what_there_is(checkout, capsys):
    assert main(["bench", "chess"]) == 2
    assert capsys.readouterr().err == "bwt: bench: no benchmark 'chess'; choose from echo, other\n"


def test_bench_outside_a_checkout(checkout, capsys, monkeypatch):
    shutil.rmtree(checkout / "benchmarks")
    monkeypatch.setattr(bench.bwt, "__file__", str(checkout / "site-packages/bwt/__init__.py"))
    assert main(["bench"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_rooflines_as_rows(capsys):
    assert main(["kernels", "hmm_filter", "--roofline", "--gpu", "h100", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["gpu"] for row in rows} == {"H100"} and {row["op"] for row in rows} == {
        "hmm_filter"
    }
    for row in rows:
        assert row["microseconds"] > 0 and 0 < row["share"] <= 1 and row["limiter"]


def test_rooflines_as_tables(capsys):
    assert main(["kernels", "--roofline"]) == 0
    text = capsys.readouterr().out
    first, *lines = text.splitlines()
    assert "Predicted" in first and "no GPU" in first
    for gpu in ("A100", "H100", "B200", "RTX 4090"):
        assert any(line.startswith(f"{gpu}: ") for line in lines)
    assert sum("selective_scan backward" in line for line in lines) >= 4


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--gpu", "A100"], "--gpu needs --roofline"),
        (["gelu", "--roofline"], "no kernel of 'gelu' was counted; choose from attention"),
    ],
)
def test_rooflines_refuse(words, complaint, capsys):
    assert main(["kernels", *words]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, complaint",
    [
        ("train bijection --stepz 3", "no option --stepz; did you mean --steps?"),
        ("train bijection --stickiness=0.9", "--stickiness is an option of the task hmm"),
        ("train hmm --no-replacement", "--no-replacement is an option of the task bijection"),
        ("train hmm --state 16", "--state is an option of the model mamba"),
        ("kernels --roofine", "no option --roofine; did you mean --roofline?"),
        ("kernels --zzzz", "no option --zzzz (see bwt kernels --help)"),
        ("train bijection hmm", "unrecognized arguments: hmm"),
    ],
)
def test_an_unknown_option_gets_a_hint(words, complaint, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1


def test_a_reader_who_has_seen_enough_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -P -m bwt kernels | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("\n") == 1 and done.stderr == ""
