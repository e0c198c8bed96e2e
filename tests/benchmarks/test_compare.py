"""`bwt bench --compare`: a slowdown is found, and noise is not taken for one."""

import importlib
import io
import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.usefixtures("benchmark_scripts")


def module(name):
    return importlib.import_module(name)


@pytest.fixture
def progress():
    return module("progress").Progress(quiet=True, file=io.StringIO())


class TestNoise:
    def test_the_interval_is_that_of_order_statistics(self):
        """Of 20 sorted ratios the 4th and the 17th: 99% by the tables of the sign test."""
        noise = module("noise")
        ratios = [1 + i / 100 for i in range(20)]
        random.Random(0).shuffle(ratios)
        found = noise.of_pairs([2.0] * 20, [2 * x for x in ratios])
        assert found == pytest.approx((1.095, 1.03, 1.16))

    @pytest.mark.parametrize("n", [8, 15, 20, 30])
    def test_the_interval_holds_the_median_in_99_of_100_cases(self, n):
        noise, rng = module("noise"), random.Random(n)
        missed = 0
        for _ in range(2000):
            low, high = noise.of_pairs([1.0] * n, [rng.lognormvariate(0, 1) for _ in range(n)])[1:]
            missed += not low <= 1 <= high
        assert 1 <= missed <= 30  # 20 would be 1%; it is less, as tosses come in whole numbers

    def test_few_pairs_decide_nothing(self):
        noise = module("noise")
        few = noise.FEWEST_PAIRS - 1
        found = noise.of_pairs([1.0] * few, [9.0] * few)
        assert found == (9, 0, math.inf) and noise.verdict(found) == "same"
        assert noise.verdict(noise.of_pairs([1.0] * 8, [9.0] * 8)) == "slower"

    @pytest.mark.parametrize(
        "low,high,verdict",
        [
            (1.06, 1.2, "slower"),
            (1.04, 1.2, "same"),
            (0.8, 0.94, "faster"),
            (0.8, 0.97, "same"),
            (0.5, 2.0, "same"),
        ],
    )
    def test_verdict(self, low, high, verdict):
        noise = module("noise")
        assert noise.verdict(noise.Ratio(1.0, low, high)) == verdict

    def test_medians(self):
        noise = module("noise")
        ratio = noise.of_medians([2.0, 4.0, 3.0], [1.0, 1.0, 1.0])
        assert ratio == (3, 2, 4) == noise.of_medians([2.0, 4.0, 3.0], [1.0, 1.0, 1.0])

    def test_quantiles(self):
        old = dict(units=2, p20_ms=1.0, median_ms=2.0, p80_ms=4.0)
        new = dict(units=1, p20_ms=3.0, median_ms=4.0, p80_ms=5.0)
        of_quantiles = module("noise").of_quantiles
        assert of_quantiles(old, new) == (4, 1.5, 10)
        assert of_quantiles(old, new, drift=2.0) == (2, 0.75, 10)
        assert of_quantiles(old, new, drift=0.5) == (8, 1.5, 20)


class Machine:
    """Its own noise, and a drift that hits whatever runs on it."""

    def __init__(self, spread=0.02, drift=lambda turn: 1.0):
        self.rng, self.spread, self.drift, self.turn = random.Random(0), spread, drift, 0

    def takes(self, seconds):
        self.turn += 1
        noise = self.rng.lognormvariate(0, self.spread)
        if self.rng.random() < 0.1:  # somebody else's time slice
            noise *= 10
        return seconds * noise * self.drift(self.turn)


class Side:
    """A process in which providers take the given seconds."""

    def __init__(self, machine, seconds, name="", log=None, wrong=(), late=(), right=None):
        self.machine, self.seconds, self.name = machine, seconds, name
        self.log = [] if log is None else log
        self.wrong, self.late = list(wrong), list(late)
        self.right = list(seconds) if right is None else right

    def open(self, case, mode, device, threads, providers):
        plan = {"loops": 3, "samples": 30, "warm": True}
        plans = {name: plan for name in providers if name in self.seconds}
        return {"plans": plans, "unavailable": [], "wrong": self.wrong}

    def sample(self, provider, loops, warm):
        self.log.append(self.name)
        return {"seconds": self.machine.takes(self.seconds[provider])}

    def close(self):
        return {"wrong": self.late, "right": self.right}

    def end(self):
        self.log.append("end")


def bench_of(*providers):
    common = module("common")
    made = [common.Provider(name, None, backend="native") for name in providers]
    case = common.Case("c", {}, units=1)
    bench = common.Bench("op", [case], made, None, None, providers[0])
    options = SimpleNamespace(cases=[case], providers=made, device=["cpu"], threads=[1])
    return bench, options


def compared(progress, start, *providers, show=lambda row: None):
    return module("pairing").compare(*bench_of(*providers), start, progress, show)


class TestPairs:
    def sides(self, before, now, **machine):
        machine = Machine(**machine)
        Sides = module("pairing").Sides
        return lambda: Sides(Side(machine, before), Side(machine, now))

    def test_a_planted_slowdown_is_found_and_nothing_else(self, progress):
        before = {"a": 1e-3, "b": 2e-3, "c": 3e-3}
        now = {"a": 1e-3, "b": 2.3e-3, "c": 2.5e-3}
        outcome = compared(progress, self.sides(before, now), *before)
        assert [row["verdict"] for row in outcome.rows] == ["same", "slower", "faster"]
        slower = outcome.rows[1]
        assert slower["low"] < 1.15 < slower["high"] and slower["pairs"] == 30
        assert (slower["before_ms"], slower["now_ms"]) == pytest.approx((2, 2.3), rel=0.05)

    @pytest.mark.parametrize("spread", [0.01, 0.1, 0.5])
    def test_equal_sides_differ_in_nothing(self, progress, spread):
        names = [f"p{i}" for i in range(20)]
        times = dict.fromkeys(names, 1e-3)
        outcome = compared(progress, self.sides(times, times, spread=spread), *names)
        assert {row["verdict"] for row in outcome.rows} == {"same"} and len(outcome.rows) == 20

    def test_a_machine_that_becomes_three_times_slower_hits_both(self, progress):
        def drift(turn):
            return 1 + 2 * turn / 60

        times = {"a": 1e-3}
        outcome = compared(progress, self.sides(times, times, drift=drift), "a")
        assert outcome.rows[0]["verdict"] == "same"
        assert outcome.rows[0]["now_ms"] > 1.5  # it was slower indeed

    def test_each_comes_first_in_every_other_pair(self, progress):
        log, machine, Sides = [], Machine(), module("pairing").Sides
        sides = Sides(Side(machine, {"a": 1.0}, "A", log), Side(machine, {"a": 1.0}, "B", log))
        compared(progress, lambda: sides, "a")
        assert "".join(log[:8]) == "ABBAABBA" and log[-2:] == ["end", "end"]

    def test_what_does_not_show_in_new_processes_is_not_kept(self, progress):
        """Memory lay badly in the first."""
        machine, Sides = Machine(), module("pairing").Sides
        starts = iter([1.3e-3, 1e-3])

        def start():
            return Sides(Side(machine, {"a": 1e-3}), Side(machine, {"a": next(starts)}))

        shown = []
        outcome = compared(progress, start, "a", show=lambda row: shown.append(row["verdict"]))
        assert [row["verdict"] for row in outcome.rows] == ["same"]
        assert shown == ["slower", "not again"]

    def test_wrong_results_count_on_the_present_side_only(self, progress):
        machine, Sides = Machine(), module("pairing").Sides
        wrong = ["WRONG x: here: off", "WRONG x: there: off"]
        before = Side(machine, {"a": 1.0}, wrong=wrong, late=["WRONG y: (after the timing)"])
        now = Side(machine, {"a": 1.0}, wrong=["WRONG z"], late=["WRONG w (after the timing)"])
        outcome = compared(progress, lambda: Sides(before, now), "a", "absent")
        assert outcome.wrong == ["WRONG z", "WRONG w (after the timing)"]
        notes = ["before: WRONG x: here: off", "before: WRONG y: (after the timing)"]
        assert outcome.notes == notes
        assert [row["provider"] for row in outcome.rows] == ["a"]

    @pytest.mark.parametrize("index", [0, 1])
    def test_what_is_wrong_after_the_timing_has_no_row(self, progress, index):
        times = {"a": 1.0, "b": 1.0}
        sides = [Side(Machine(), times), Side(Machine(), times)]
        sides[index].right = ["b"]
        outcome = compared(progress, lambda: module("pairing").Sides(*sides), "a", "b")
        assert [row["provider"] for row in outcome.rows] == ["b"]

    @pytest.mark.parametrize(
        "present,notes,broken",
        [
            (False, ["op cannot be compared: before: ImportError: no x"], []),
            (True, [], ["op does not run any more: ImportError: no x"]),
        ],
    )
    def test_a_side_that_cannot_run(self, progress, present, notes, broken):
        def start():
            raise module("serving").Lost("ImportError: no x", present)

        outcome = compared(progress, start, "a")
        assert (outcome.notes, outcome.broken) == (notes, broken)
        outcome.rows.append({"verdict": "same"})
        assert module("compare")._exit_code(outcome) == (2 if present else 0)


class TestServer:
    def serve(self, function):
        """A server whose only provider is that function, and what it says of it."""
        common, serving = module("common"), module("serving")

        def make(case, mode, x, device):
            return function, 1

        bench = common.Bench(
            op="op",
            cases=[common.Case("c", {})],
            providers=[common.Provider("p", make)],
            inputs=lambda case, device: None,
            check=lambda case, mode, x, outputs, units: None if outputs == 1 else "not 1",
            baseline="p",
        )
        settings = SimpleNamespace(repeats=8, seconds=0.1, cold=False, pages="warm")
        server = serving.Server(bench, settings)
        place = dict(case="c", mode="forward", device="cpu", threads=1)
        opened = server.open(**place, providers=["p", "q"])
        return server, opened

    @pytest.fixture(autouse=True)
    def as_before(self):
        import gc

        import torch

        threads = torch.get_num_threads()
        yield
        torch.set_num_threads(threads)
        gc.enable()

    def test_it_plans_times_and_checks(self, monkeypatch):
        times = iter([1e-3, 1e-2, 1e-5, 1e-2, 3.0, 1.0, 2.0])  # by the call, and by the sample

        def clock(call, loops):
            return next(times)

        monkeypatch.setattr(module("timing"), "cpu_seconds", clock)
        server, opened = self.serve(lambda: 1)
        plan = opened["plans"]["p"]
        assert list(opened["plans"]) == ["p"] and not opened["wrong"]
        assert plan == {"loops": 100, "samples": 8, "warm": True}
        assert server.sample("p", plan["loops"], plan["warm"]) == {"seconds": 1.0}
        assert server.close() == {"wrong": [], "right": ["p"]}

    def test_what_goes_wrong_later_is_told_at_the_end(self):
        calls = []

        def tired():
            calls.append(1)
            return 1 if len(calls) < 3 else 2

        server, opened = self.serve(tired)
        assert not opened["wrong"]
        closed = server.close()
        [wrong] = closed["wrong"]
        assert closed["right"] == [] and "not 1 (after the timing)" in wrong

    def test_a_wrong_result_is_not_planned(self):
        _, opened = self.serve(lambda: 2)
        assert opened["plans"] == {} and "not 1" in opened["wrong"][0]

    def test_faults_are_answers(self):
        answers = io.StringIO()
        settings = SimpleNamespace(tree=None, pages="warm")
        module("serving").serve("no_such_op", settings, [], answers)
        assert "No module named 'bench_no_such_op'" in json.loads(answers.getvalue())["fault"]


ROW = {
    **dict(op="pointwise", case="gelu-2368x768", provider="native", mode="forward"),
    **dict(dtype="float32", device="this CPU", threads=1, shape={"op": "gelu"}, units=1),
    **dict(median_ms=2.0, p20_ms=1.9, p80_ms=2.1, simd="avx2", pages="warm", cache="warm"),
    **dict(versions={"torch": "2.13"}, backend="native", git="abc", timestamp="today"),
}


class TestRecords:
    @pytest.mark.parametrize("listed", [False, True])
    def test_json(self, tmp_path, listed):
        document = {"op": "pointwise", "rows": [ROW]}
        path = tmp_path / "x.json"
        path.write_text(json.dumps([document, {"rows": []}] if listed else document))
        [row] = module("recorded").load(path)
        assert row == {name: ROW[name] for name in ROW if name != "backend"}

    def test_csv(self, tmp_path):
        module("records").record(tmp_path / "x.csv", [ROW])
        [row] = module("recorded").load(tmp_path / "x.csv")
        assert row == {name: ROW[name] for name in ROW if name != "backend"}

    def test_those_that_are_committed(self):
        """But for the one of launches, which has no times."""
        for path in (FOLDER / "results").glob("*.csv"):
            if path.stem != "launches":
                rows = module("recorded").load(path)
                assert {row["op"] for row in rows} == {path.stem}

    @pytest.mark.parametrize(
        "text,complaint",
        [
            ("", "it is empty"),
            ("# A page\n\nof words\n", "'op' is missing"),
            ('{"loss": 3}', "'rows' is missing"),
            ('{"rows": [{"op": 1}]}', "'case' is missing"),
            ("[1, 2]", "not subscriptable"),
            ("{", "Expecting property name"),
            ("case,kernels\na,3\n", "'op' is missing"),
        ],
    )
    def test_other_files_are_refused_in_one_line(self, tmp_path, text, complaint):
        path = tmp_path / "x"
        path.write_text(text)
        with pytest.raises(ValueError, match="has no rows of `bwt bench`: ") as fault:
            module("recorded").load(path)
        assert complaint in str(fault.value) and "\n" not in str(fault.value)

    def test_binary(self, tmp_path):
        (tmp_path / "x").write_bytes(bytes(range(256)))
        with pytest.raises(ValueError, match="has no rows"):
            module("recorded").load(tmp_path / "x")

    @pytest.mark.parametrize(
        "change,reason",
        [
            ({}, None),
            ({"device": "AMD EPYC"}, "recorded on AMD EPYC, this is this CPU"),
            ({"simd": "avx512"}, "recorded with avx512, here is avx2"),
            ({"threads": 64}, "recorded with 64 threads, here are 2 CPUs"),
            ({"pages": "fresh"}, "recorded with --pages fresh, which this run has not"),
            ({"cache": "cold"}, "recorded with cold caches, here they are warm (see --cold)"),
            ({"case": "gone"}, "there is no such case any more"),
            ({"mode": "step"}, "there is no such case any more"),
            ({"shape": {"op": "silu"}}, "the case of this name has another shape now"),
            ({"provider": "gone"}, "there is no such provider any more"),
        ],
    )
    def test_what_cannot_be_compared_is_said(self, change, reason):
        bench = module("bench_pointwise").BENCH
        here = module("recorded").Here({"cpu": "this CPU"}, "avx2", 2, "warm", "warm")
        row = {**ROW, "shape": bench.cases[0].shape, **change}
        assert here.obstacle(row, bench) == reason


class TestFile:
    """Against recorded rows; what is measured now is given."""

    @pytest.fixture
    def now(self, monkeypatch, tmp_path):
        bench = module("bench_pointwise").BENCH
        monkeypatch.setattr(module("records"), "cpu_name", lambda: "this CPU")
        monkeypatch.setattr(module("records"), "simd", lambda: "avx2")
        times = {"native": 2.0, "torch": 4.0, "write": 1.0}  # as recorded
        recorded = [self.row(bench, name, time) for name, time in times.items()]
        path = tmp_path / "before.json"
        path.write_text(json.dumps({"op": "pointwise", "rows": recorded}))
        report = module("measuring").Report()

        def measure(given, options, progress, show):
            report.rows = [self.row(bench, *item) for item in times.items()]
            show(report.rows)
            return report

        monkeypatch.setattr(module("measuring"), "measure", measure)
        return SimpleNamespace(times=times, path=path, report=report)

    def row(self, bench, name, time):
        backend = "" if name == "write" else name
        near = dict(median_ms=time, p20_ms=0.98 * time, p80_ms=1.02 * time)
        return {**ROW, "provider": name, "backend": backend, "shape": bench.cases[0].shape, **near}

    def run(self, capsys, path, *flags):
        code = module("compare").main([str(path), *flags])
        return code, capsys.readouterr().out.splitlines()

    def test_nothing_changed(self, now, capsys):
        code, lines = self.run(capsys, now.path)
        assert code == 0 and lines[-1] == "2 compared: 0 slower, 0 faster"

    def test_a_planted_slowdown(self, now, capsys):
        now.times |= {"native": 2.4, "torch": 3.2}
        code, lines = self.run(capsys, now.path)
        assert code == 4
        assert lines[-1] == "2 compared: 1 slower, 1 faster (exit code 4)"
        [slower] = [line for line in lines if line.startswith("slower")]
        assert slower.endswith("native takes 1.2 (1.15 to 1.25) times as long")

    def test_a_slower_machine_is_no_slowdown(self, now, capsys):
        now.times |= {name: 1.5 * time for name, time in now.times.items()}
        code, lines = self.run(capsys, now.path)
        assert code == 0 and any("what is not bwt's took 1.5" in line for line in lines)
        now.times["native"] *= 1.2
        assert self.run(capsys, now.path)[0] == 4

    def test_a_drift_alone_decides_nothing(self, now, capsys):
        now.times["write"] /= 3
        assert self.run(capsys, now.path)[0] == 0

    def test_wrong_results_come_first(self, now, capsys):
        now.times |= {"native": 9.0}
        now.report.wrong.append("WRONG native: off by 1")
        code, lines = self.run(capsys, now.path)
        assert code == 1 and "WRONG native: off by 1" in lines

    def test_json(self, now, capsys):
        now.times |= {"native": 9.0}
        code, [line] = self.run(capsys, now.path, "--json")
        document = json.loads(line)
        assert code == 4 and [r["verdict"] for r in document["rows"]] == ["slower", "same"]

    @pytest.mark.parametrize(
        "words,complaint",
        [
            (["FILE"], "not compared: 3 row(s): recorded on this CPU, this is another"),
            (["FILE", "train"], "not compared: train: the file has no row of it"),
            (["no/such/file.json"], "'no/such/file.json' is neither a file nor a commit"),
            (["FILE", "chess"], "no benchmark 'chess'; choose from attention"),
            (["FILE", "pointwise", "--cases", "x"], "no case 'x'; choose from gelu"),
        ],
    )
    def test_refusals_are_one_line(self, now, capsys, monkeypatch, words, complaint):
        monkeypatch.setattr(module("records"), "cpu_name", lambda: "another")
        with pytest.raises(SystemExit) as stop:
            module("compare").main([str(now.path) if x == "FILE" else x for x in words])
        captured = capsys.readouterr()
        assert stop.value.code == 2 and captured.out == ""
        assert complaint in captured.err and captured.err.count("\n") == 1


def git(root, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(
        ["git", "-C", str(root), *identity, *words], check=True, capture_output=True
    )


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")


BENCH = """
import sys, time
import command, torch
from common import Bench, Case, Provider
from bwt import NAP

def make(case, mode, x, device):
    def call():
        time.sleep(0.002 + NAP)
        return 1
    return call, 1

BENCH = Bench("nap", [Case("c", {})], [Provider("nap", make, backend="native")],
              lambda case, device: None, lambda *given: None, "nap")
if __name__ == "__main__":
    sys.exit(command.main(BENCH))
"""


@pytest.fixture
def repository(tmp_path):
    """The benchmarks with a package whose calls take a nap, longer since the last commit."""
    root = tmp_path / "checkout"
    (root / "bwt").mkdir(parents=True)
    (root / "kernels").mkdir()
    (root / "csrc").mkdir()
    (root / "benchmarks").mkdir()
    for path in FOLDER.glob("*.py"):
        if not path.stem.startswith("bench_"):
            shutil.copy(path, root / "benchmarks")
    (root / "benchmarks/bench_nap.py").write_text(BENCH)
    (root / "bwt/__init__.py").write_text("NAP = 0.0\n")
    (root / "kernels/__init__.py").touch()
    (root / "bwt/kernels").symlink_to("../kernels")
    (root / "csrc/x.cpp").write_text("// one\n")
    (root / ".gitignore").write_text("*.so\nkernels\n!/kernels\n__pycache__\nbuild\n")
    git(tmp_path, "init", "-q", str(root))
    commit(root)
    (root / "bwt/__init__.py").write_text("NAP = 0.004\n")
    commit(root)
    (root / "bwt/_C.so").write_text("the present library")
    return root


class TestTrees:
    def test_a_commit_is_there_and_gone_again(self, repository, progress):
        trees = module("trees")
        first = trees.resolve("HEAD~1", repository)
        with trees.checked_out(first, progress, repository) as tree:
            assert (tree / "bwt/__init__.py").read_text() == "NAP = 0.0\n"
            assert (tree / "bwt/kernels/__init__.py").exists()
            assert (tree / "bwt/_C.so").read_text() == "the present library"
        assert not tree.exists()
        assert len(git(repository, "worktree", "list").stdout.splitlines()) == 1

    def test_other_native_sources_are_built_once(self, repository, progress, monkeypatch, tmp_path):
        trees = module("trees")
        monkeypatch.setattr(trees, "KEPT", tmp_path / "kept")
        (repository / "csrc/x.cpp").write_text("// changed, not committed\n")
        built = []

        def build(commit, tree):
            built.append(commit)
            (tree / "bwt/_C.so").write_text("built")

        monkeypatch.setattr(trees, "_build", build)
        for _ in range(2):
            first = trees.resolve("HEAD~1", repository)
            with trees.checked_out(first, progress, repository) as tree:
                assert (tree / "bwt/_C.so").read_text() == "built"
        assert built == [first]

    def test_a_new_file_is_another_source(self, repository):
        trees = module("trees")
        assert trees.same_sources("HEAD", repository)
        (repository / "csrc/y.cpp").touch()
        assert not trees.same_sources("HEAD", repository)

    def test_a_build_that_fails_is_one_line(self, repository, progress, monkeypatch, tmp_path):
        trees = module("trees")
        monkeypatch.setattr(trees, "KEPT", tmp_path / "kept")
        (repository / "setup.py").write_text("raise SystemExit('no compiler')\n")
        commit(repository)
        (repository / "setup.py").write_text("")
        head = trees.resolve("HEAD", repository)
        with (
            pytest.raises(ValueError, match="cannot be built") as fault,
            trees.checked_out(head, progress, repository),
        ):
            pass
        assert "\n" not in str(fault.value)
        assert "no compiler" in (tmp_path / "kept/build.log").read_text()
        assert len(git(repository, "worktree", "list").stdout.splitlines()) == 1

    def test_what_is_no_commit(self, repository):
        trees = module("trees")
        assert trees.resolve("nonsense", repository) is None
        assert trees.resolve("--all", repository) is None


@pytest.mark.slow
def test_end_to_end(repository):
    """Processes, git and clocks as they are: a nap is three times as long since a commit."""
    command = [sys.executable, "benchmarks/compare.py", "HEAD~1", "nap", "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run(
        [*command, "--repeats", "8", "--seconds", "0.1"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 4, done.stderr
    assert lines[-1] == "1 compared: 1 slower, 0 faster (exit code 4)"
    assert [line.split()[-1] for line in lines if line.startswith("c ")] == ["slower", "slower"]
    assert len(git(repository, "worktree", "list").stdout.splitlines()) == 1
