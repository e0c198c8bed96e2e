"""The `bwt` command, as a user meets it."""

import json

import pytest

from bwt.cli import main


def test_env_lists_backends_and_why_one_is_not_usable(capsys):
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    assert "automatic for cpu tensors" in text and "torch" in text


def test_env_as_json(capsys):
    assert main(["env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    backends = report["ops"]["bijection_posterior"]
    assert backends["native"]["usable"] and backends["native"]["automatic_for"] == "cpu"
    assert backends["cuda"]["usable"] or backends["cuda"]["reason"]


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["env", "--nonsense"]])
def test_bad_command_line_exits_with_two_and_no_traceback(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--help"], ["env", "--help"], ["--version"]])
def test_help(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 0
    assert "bwt" in capsys.readouterr().out


def test_example_prints_exact_posteriors(capsys):
    from bwt import example

    example.main()
    text = capsys.readouterr().out
    assert "pi(0)      0.0    0.0    0.0    0.0  100.0    0.0   0.000 b" in text
