"""`make gpu` without a GPU: its refusal, and its stages, run for real or pretended."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.fake_gpu import SMI

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("benchmark_scripts")


@pytest.fixture
def gpu():
    return importlib.import_module("gpu")


@pytest.fixture
def pretended(monkeypatch):
    """nvidia-smi answers."""
    monkeypatch.setattr(importlib.import_module("machine"), "output", lambda command: SMI)


class TestRefusal:
    # Without nvidia-smi, and as typed by hand: a make started by another announces its folder.
    ENVIRONMENT = {name: text for name, text in os.environ.items() if "MAKE" not in name}
    ENVIRONMENT |= {"PATH": "/usr/bin:/bin"}

    @pytest.fixture(autouse=True)
    def no_gpu(self):
        if list(Path("/dev").glob("nvidia[0-9]*")):
            pytest.skip("there is a GPU")

    def test_make_says_so_in_one_line_and_builds_nothing(self):
        """Even from a checkout where nothing is built."""
        command = ["make", "gpu", f"PYTHON={sys.executable}", "VENV=/nonexistent"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=self.ENVIRONMENT, timeout=60
        )
        ours = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
        assert done.returncode == 2 and done.stdout == "" and len(ours) == 1
        assert ours[0].startswith("make gpu: no GPU here")

    def test_the_program_needs_nothing_but_python(self):
        """-S: no packages. Exit code 2."""
        done = subprocess.run(
            [sys.executable, "-S", "benchmarks/gpu.py"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env=self.ENVIRONMENT,
        )
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1


class TestRunner:
    def make(self, stages, log, *, fails=()):
        def stage(name, minutes, needs=()):
            def run():
                log.append(name)
                if name in fails:
                    raise stages.Failed(f"{name} is broken; mend it", {"kept": 1})
                if name == "crash":
                    raise ZeroDivisionError("x / 0")
                return {"of": name}

            return stages.Stage(name, minutes, run, needs)

        return [stage("one", 1), stage("two", 2, ("one",)), stage("crash", 3), stage("four", 4)]

    def run(self, stages, **options):
        log, said = [], []
        clock = iter(range(0, 1000, 30))
        outcomes = stages.run(self.make(stages, log, **options), said.append, lambda: next(clock))
        return outcomes, log, said

    def test_says_beforehand_what_it_will_take_and_goes_on_after_a_failure(self, stages):
        outcomes, log, said = self.run(stages)
        assert log == ["one", "two", "crash", "four"]
        assert [o.state for o in outcomes] == ["passed", "passed", "failed", "passed"]
        assert said[0] == "about 10 minutes in all: one 1, two 2, crash 3, four 4"
        assert said[1] == "[1/4] one: about 1 min, 10 min left in all"
        assert said[3] == "[2/4] two: about 2 min, 9 min left in all"
        assert "crash failed after 0.5 min: ZeroDivisionError: x / 0" in said
        assert outcomes[0].details == {"of": "one"} and outcomes[0].seconds == 30

    def test_an_interrupt_ends_it_and_keeps_what_was_done(self, stages):
        def interrupt():
            raise KeyboardInterrupt

        chosen = self.make(stages, [])
        chosen[1] = chosen[1]._replace(run=interrupt)
        outcomes = stages.run(chosen, print)
        assert [o.state for o in outcomes] == ["passed", "failed"]
        assert outcomes[1].words == "interrupted"

    def test_what_needs_a_failed_stage_is_skipped(self, stages):
        outcomes, log, _ = self.run(stages, fails=("one",))
        assert log == ["one", "crash", "four"]
        assert outcomes[0][1:] == ("failed", 30, "one is broken; mend it", {"kept": 1})
        assert outcomes[1].state == "skipped" and outcomes[1].words == "needs one"


class TestShell:
    @pytest.fixture
    def shell(self, stages, tmp_path):
        return stages.Shell(ROOT, tmp_path)

    def test_output_and_log(self, shell, tmp_path):
        code, lines = shell(["sh", "-c", "echo a; echo b >&2"], "x", 1)
        assert code == 0 and sorted(lines) == ["a", "b"]
        assert sorted((tmp_path / "x.log").read_text().split()) == ["a", "b"]

    def test_failure_names_the_last_line_and_the_log(self, stages, shell, tmp_path):
        with pytest.raises(stages.Failed, match=r"exit code 3: why; see .*x\.log"):
            shell(["sh", "-c", "echo why; exit 3"], "x", 1)
        assert shell(["sh", "-c", "exit 3"], "x", 1, check=False) == (3, [])

    def test_what_hangs_is_ended_with_its_children(self, stages, shell, monkeypatch):
        monkeypatch.setattr(stages, "LEAST_PATIENCE", 0.5 / 60)
        with pytest.raises(stages.Failed, match="did not end"):
            shell(["sh", "-c", "sleep 60 & sleep 60"], "x", 0)


class FakeShell:
    """Answers from a list of (exit code, lines) and remembers the commands."""

    def __init__(self, logs, *answers):
        self.logs, self.answers, self.commands = Path(logs), list(answers), []

    def __call__(self, command, log, minutes, check=True):
        self.commands.append(command)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class TestStages:
    def test_machine(self, gpu, pretended, monkeypatch):
        monkeypatch.setattr(gpu, "nvcc_version", lambda: None)
        found = gpu.check_machine()
        assert found["driver"] == "575.1" and found["power_limit_w"] == 400
        [note] = found["notes"]
        assert "nvcc is not on the path" in note and "install the CUDA toolkit" in note
        monkeypatch.setattr(gpu, "nvcc_version", lambda: "12.4")
        monkeypatch.setattr(gpu, "LEAST_MEMORY", 90000)
        notes = gpu.check_machine()["notes"]
        assert len(notes) == 2 and "81000 MiB" in notes[0] and "12.4 is too old" in notes[1]

    def test_nvcc(self, gpu, monkeypatch):
        monkeypatch.setattr(gpu.shutil, "which", lambda name: "/x/nvcc")
        text = "Cuda compilation tools, release 13.0, V13.0.48\n"
        monkeypatch.setattr(gpu.machine, "output", lambda command: text)
        assert gpu.nvcc_version() == "13.0"
        monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
        assert gpu.nvcc_version() is None

    def test_software_is_asked_in_the_environment(self, gpu, stages, tmp_path, monkeypatch):
        """For real, with the torch there is."""
        monkeypatch.setattr(gpu, "PYTHON", sys.executable)
        shell = stages.Shell(ROOT, tmp_path)
        if torch.cuda.is_available():
            assert gpu.check_software(shell)["devices"] > 0
            return
        with pytest.raises(stages.Failed) as stop:
            gpu.check_software(shell)
        assert stop.value.details["torch"] == torch.__version__
        words = "is built without CUDA" if torch.version.cuda is None else "sees no device"
        assert words in str(stop.value)

    GOOD = {"torch": "2.13.0+cu130", "cuda": "13.0", "devices": 1, "triton": "3.7.1"} | {
        "extension": None,
        "native": None,
    }

    @pytest.mark.parametrize(
        "change,words",
        [
            ({}, None),
            ({"cuda": None}, "run `.venv/bin/pip install --force-reinstall 'torch===2.13.0'`"),
            ({"devices": 0}, "look at CUDA_VISIBLE_DEVICES"),
            ({"triton": None}, "pip install triton"),
            ({"native": "bwt._C is not built"}, "bwt._C is not built"),
        ],
    )
    def test_what_software_lacks_and_what_to_do(self, gpu, change, words):
        fault = gpu.software_fault(self.GOOD | change)
        assert fault is None if words is None else words in fault and "\n" not in fault

    def test_an_extension_that_does_not_load_is_a_note(self, gpu, tmp_path):
        lines = [json.dumps(self.GOOD | {"extension": "does not load"}), "a warning at exit"]
        found = gpu.check_software(FakeShell(tmp_path, (0, lines)))
        assert found["notes"] == ["does not load"]

    TESTS = """
import pytest
pytestmark = pytest.mark.gpu
def test_good(): pass
def test_bad(): assert 1 == 2
def test_absent(): pytest.skip("x")
"""

    def test_tests_are_counted_and_failures_named(self, gpu, stages, tmp_path, monkeypatch):
        """With pytest itself."""
        (tmp_path / "test_some.py").write_text(self.TESTS)
        real = stages.Shell(tmp_path, tmp_path / "logs")
        monkeypatch.setattr(gpu, "PYTHON", sys.executable)

        def shell(command, *rest, **options):
            return real([*command, "-o", "markers=gpu", "-p", "no:cacheprovider"], *rest, **options)

        with pytest.raises(stages.Failed, match=r"1 failed, 1 passed, 1 skipped.*test_bad") as stop:
            gpu.run_tests(shell, gpu.Plan.of(True))
        found = stop.value.details
        assert (found["passed"], found["failed"], found["skipped"]) == (1, 1, 1)
        (tmp_path / "test_some.py").write_text(self.TESTS.replace("1 == 2", "1 == 1"))
        assert gpu.run_tests(shell, gpu.Plan.of(True))["passed"] == 2

    def test_all_skipped_is_a_failure(self, gpu, stages, tmp_path):
        shell = FakeShell(tmp_path, (0, ["5 skipped in 0.1s"]))
        with pytest.raises(stages.Failed, match="ran no test"):
            gpu.run_tests(shell, gpu.Plan.of(True))

    def test_tuning(self, gpu, tmp_path):
        lines = [
            "1/2 selective_scan forward fp32 4 (L31), about 3 min left",
            "  [BE8 warps2 stages1]: skipped: spills 3 registers at L31",
            "  chosen: [BE8 warps2 stages1], 1.25 times as fast",
            json.dumps({"entries": [{}, {}]}),
        ]
        shell = FakeShell(tmp_path, (0, lines))
        found = gpu.tune(shell, gpu.Plan.of(False))
        assert found == {"entries": 2, "faster": 1, "gains": [1.25], "skipped": 1}
        assert shell.commands[0][-2:] == ["--minutes", "8"]

    def test_one_benchmark_that_fails_does_not_stop_the_others(self, gpu, stages, tmp_path):
        answers = [(0, [json.dumps({"rows": [{"n": i}], "wrong": []})]) for i in range(7)]
        answers[1] = (1, ["Traceback", "ValueError: x"])
        answers[2] = (1, [json.dumps({"rows": [{"n": 2}], "wrong": ["WRONG cuda: off by 1"]})])
        answers[3] = stages.Failed("did not end")
        shell = FakeShell(tmp_path, *answers)
        with pytest.raises(stages.Failed, match=r"3 fault\(s\), the first: hmm_filter: no JSON"):
            gpu.bench(shell, gpu.Plan.of(False))
        assert len(shell.commands) == 7 == len(gpu.BENCHES)
        shell.answers = [(0, [json.dumps({"rows": [{"n": i}], "wrong": []})]) for i in range(7)]
        assert gpu.bench(shell, gpu.Plan.of(False))["rows"] == [{"n": i} for i in range(7)]

    def test_a_missed_target_is_a_note(self, gpu, tmp_path):
        claim = {"claim": "a / b at least 2", "measured": 1.234, "verdict": "missed"}
        met = {"claim": "a / c at least 1", "measured": 1.234, "verdict": "met"}
        missed = {"rows": [], "wrong": [], "claims": [met, claim]}
        good = {"rows": [], "wrong": [], "claims": [met]}
        answers = [(0, [json.dumps(good)])] * 6
        shell = FakeShell(tmp_path, (3, [json.dumps(missed)]), *answers)
        notes = gpu.bench(shell, gpu.Plan.of(False))["notes"]
        assert notes == ["attention: target missed: a / b at least 2: 1.23"]

    def test_the_benchmarks_take_the_flags_they_are_given(self, gpu, tmp_path):
        """Each is asked for --device cuda and refuses it here for no other reason."""
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        for name in gpu.BENCHES:
            assert (ROOT / f"benchmarks/bench_{name}.py").exists()
        shell = FakeShell(tmp_path, *[(0, ['{"rows": [], "wrong": []}'])] * 7)
        gpu.bench(shell, gpu.Plan.of(True))
        command = [sys.executable, *shell.commands[4][1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and "torch sees no CUDA device" in done.stderr

    def test_training_runs_the_command_as_it_is(self, gpu, stages, tmp_path, monkeypatch):
        """With the device replaced and fewer steps."""
        real = stages.Shell(ROOT, tmp_path)
        monkeypatch.setattr(gpu, "PYTHON", sys.executable)
        monkeypatch.setattr(gpu, "TASKS", ("recall",))

        def shell(command, *rest):
            replaced = {"cuda": "cpu", "300": "2"}
            few = ["--eval-sequences", "8", "--threads", "1"]
            return real([*(replaced.get(word, word) for word in command), *few], *rest)

        shell.logs = tmp_path
        found = gpu.train(shell, gpu.Plan.of(True))["tasks"]["recall"]
        assert found["steps"] == 2 and found["seconds"] > 0 and found["kl"] > 0

    def test_one_task_that_fails_does_not_stop_the_others(self, gpu, stages, tmp_path):
        overall = {name: {"mean": 0.5} for name in ("entropy_mae", "kl")}
        good = json.dumps({"step": 9, "evaluation": {"model": {"overall": overall}}})
        shell = FakeShell(tmp_path, stages.Failed("exit code 1: x"), (0, [good]), (0, [good]))
        with pytest.raises(
            stages.Failed, match="1 of 3 failed, the first: bijection: exit"
        ) as stop:
            gpu.train(shell, gpu.Plan.of(False))
        assert list(stop.value.details["tasks"]) == ["hmm", "recall"]
        assert "--steps" not in shell.commands[0]

    def test_the_whole_takes_about_half_an_hour(self, gpu, stages, tmp_path):
        shell = FakeShell(tmp_path)
        full, quick = (gpu.stages(shell, gpu.Plan.of(q)) for q in (False, True))
        assert tuple(stage.name for stage in full) == gpu.NAMES
        assert 25 < sum(stage.minutes for stage in full) < 35
        assert sum(stage.minutes for stage in quick) < 15


class TestMain:
    def stages(self, stages, broken=()):
        def make(shell, plan):
            def one(name):
                def run():
                    if name in broken:
                        raise stages.Failed("it broke; mend it")
                    return {"notes": ["look here"]} if name == "machine" else None

                return stages.Stage(name, 1, run)

            return [one(name) for name in ("machine", "build", "software", "test", "train")]

        return make

    def run(self, gpu, stages, capsys, tmp_path, *flags, broken=()):
        arguments = ["--results", str(tmp_path), *flags]
        code = gpu.main(arguments, self.stages(stages, broken), git=lambda root: "abc")
        [path] = tmp_path.glob("A100-SXM4-80GB/*.json")
        return code, capsys.readouterr().out, json.loads(path.read_text())

    def test_everything(self, gpu, stages, capsys, tmp_path, pretended):
        code, text, record = self.run(gpu, stages, capsys, tmp_path)
        assert code == 0 and record["commit"] == "abc" and not record["quick"]
        assert list(record["stages"]) == ["machine", "build", "software", "test", "train"]
        assert "about 5 minutes in all" in text and "note: look here" in text
        assert f"results: {tmp_path / 'A100-SXM4-80GB'}" in text

    def test_a_failure_is_shown_at_the_end_and_in_the_exit_code(
        self, gpu, stages, capsys, tmp_path, pretended
    ):
        code, text, record = self.run(gpu, stages, capsys, tmp_path, broken=("test",))
        assert code == 1 and record["stages"]["train"]["state"] == "passed"
        assert text.splitlines()[-1] == "test failed: it broke; mend it"

    def test_only(self, gpu, stages, capsys, tmp_path, pretended):
        _, _, record = self.run(gpu, stages, capsys, tmp_path, "--only", "train", "--quick")
        assert list(record["stages"]) == ["machine", "software", "train"] and record["quick"]
