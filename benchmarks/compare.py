"""Says what became slower or faster, beyond noise, since a commit or since a recorded run.

    bwt bench --compare HEAD~3 hmm_filter attention --quick
    bwt bench --json hmm_filter > before.json; bwt bench --compare before.json

COMMIT is checked out into a temporary folder and built there if its native sources differ. A
process with its package and one with the present package take samples in turn (AB BA AB ...); both
run the present benchmarks, and their results are checked before and after. The ratio is the median
over the pairs, and its interval the 99% interval of a median. What is not the same is timed once
more in new processes and must show again.

FILE is what `bwt bench --json` printed, or a CSV file of benchmarks/results. Its rows were taken
at another time, so the interval goes from p20 over p80 to p80 over p20, both as it is and divided
by the drift: the ratio of what is not bwt's (peers and bounds) in the same group. Rows of another
machine, SIMD level or cache are not compared. A COMMIT says more.
"""

import argparse
import json
import sys
import textwrap
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import arguments
import command
import measuring
import noise
import options as every
import pairing
import recorded
import records
import summary
import trees
from common import Bench
from pairing import Outcome, Sides
from progress import Progress
from serving import Worker

FOLDER = Path(__file__).parent
PAIRS, QUICK_PAIRS = 30, 15
UNCHANGING = ("reference",)  # nobody waits for the oracle
EXIT_CODES = (
    f"Of the ratio of times, now over before: {noise.RULE}. Exit codes: 0; {command.WRONG} if a "
    f"present result is WRONG; {command.BROKEN} for bad arguments, if nothing can be compared or "
    f"something does not run any more; {command.SLOWER} if something became slower."
)


def ops() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    parser = arguments.Parser(
        prog="bwt bench --compare",
        description=__doc__,
        epilog=textwrap.fill(EXIT_CODES, 100),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("base", metavar="FILE|COMMIT", help="a file, if there is one of that name")
    add("ops", metavar="OP", nargs="*", help=f"of: {', '.join(ops())} (default: all)")
    add("--cases", nargs="+", metavar="NAME", help="names or patterns")
    add("--providers", nargs="+", metavar="NAME", help="names or patterns (those of bwt)")
    every.add_common(parser, (PAIRS, QUICK_PAIRS))
    add("--json", action="store_true", help="print one JSON document and nothing else")
    return parser.parse_args(argv), parser


def main(argv: list[str] | None = None) -> int:
    options, parser = parse(argv)
    progress = Progress(quiet=options.json)
    try:
        for op in options.ops:
            if op not in ops():
                raise ValueError(f"no benchmark {op!r}; choose from {', '.join(ops())}")
        outcome = _against(options, progress)
        if not outcome.rows and not outcome.wrong:
            reasons = [*outcome.notes, *outcome.broken]
            raise ValueError("; ".join(["nothing could be compared", *reasons]))
    except ValueError as error:
        progress.clear()
        parser.error(str(error).removeprefix("--compare: "))
    finally:
        progress.clear()
    progress.tell(*_foot(outcome))
    if options.json:
        print(json.dumps({"base": options.base, **vars(outcome)}))
    return _exit_code(outcome)


def _exit_code(outcome: Outcome) -> int:
    if outcome.broken:
        return command.BROKEN
    if outcome.wrong:
        return command.WRONG
    return command.SLOWER if _those(outcome, "slower") else 0


def _against(options: argparse.Namespace, progress: Progress) -> Outcome:
    path = Path(options.base)
    if path.is_file():
        return against_file(recorded.load(path), options, progress)
    commit = trees.resolve(options.base)
    if commit is None:
        raise ValueError(f"{options.base!r} is neither a file nor a commit of this repository")
    return against_commit(commit, options, progress)


def chosen(op: str, options: argparse.Namespace) -> tuple[Bench, argparse.Namespace]:
    """A benchmark, and its own copy of the options."""
    bench = import_module(f"bench_{op}").BENCH
    own = argparse.Namespace(**vars(options))
    every.choose(bench, own, (PAIRS, QUICK_PAIRS))
    return bench, own


def against_commit(commit: str, options: argparse.Namespace, progress: Progress) -> Outcome:
    pairs = [chosen(op, options) for op in options.ops or ops()]
    outcome = Outcome()
    progress.at(commit[:12])
    with trees.checked_out(commit, progress) as tree:
        present, _, changes = records.git_state().partition("-")
        changes = " with changes" if changes else ""
        progress.tell(f"before: {commit[:12]}, now: {present[:12]}{changes}")
        for bench, own in pairs:
            if options.providers is None:
                own.providers = [
                    p for p in own.providers if p.backend and p.backend not in UNCHANGING
                ]
            start = partial(_start, bench.op, own, tree)
            show = _Table(bench, own, progress).show
            found = pairing.compare(bench, own, start, progress, show)
            for name, items in vars(found).items():
                getattr(outcome, name).extend(items)
    return outcome


def _start(op: str, options: argparse.Namespace, tree: Path) -> Sides:
    names = ("repeats", "seconds", "cold", "pages")
    settings = {name: getattr(options, name) for name in names}
    sides = Sides(*(Worker(op, settings, place) for place in (tree, None)))
    try:
        for side in sides:
            side.greet()
    except BaseException:
        for side in sides:
            side.end()
        raise
    return sides


def against_file(rows: list[dict], options: argparse.Namespace, progress: Progress) -> Outcome:
    held = sorted({row["op"] for row in rows})
    wanted = options.ops or [op for op in held if op in ops()]
    outcome, obstacles = Outcome(), Counter()
    ready = []
    for op in wanted:
        bench, own = chosen(op, options)
        clocks = {device: measuring.Clock(device, own.cold) for device in own.device}
        names = {device: clock.device_name for device, clock in clocks.items()}
        here = recorded.Here.of(names, own.pages, own.cold)
        usable = []
        for row in (row for row in rows if row["op"] == op):
            if reason := here.obstacle(row, bench):
                obstacles[reason] += 1
            else:
                usable.append(row)
        if _restrict(own, usable, bench, options):
            ready.append((bench, own, usable))
    outcome.notes += [f"not compared: {n} row(s): {text}" for text, n in obstacles.most_common()]
    for op in set(options.ops) - set(held):
        outcome.notes.append(f"not compared: {op}: the file has no row of it")
    for bench, own, usable in ready:
        _measure(bench, own, usable, outcome, progress)
    return outcome


def _restrict(
    own: argparse.Namespace, rows: list[dict], bench: Bench, options: argparse.Namespace
) -> bool:
    """To what the rows have; peers that compile are not needed. False if nothing is left."""
    have = {name: {row[name] for row in rows} for name in ("case", "provider", "threads")}
    cases = own.cases if options.cases or options.quick else every.all_cases(bench)
    own.cases = [case for case in cases if case.name in have["case"]]
    slow = [p for p in bench.providers if every.matches(p.name, bench.slow) and not p.backend]
    own.providers = [p for p in own.providers if p.name in have["provider"] and p not in slow]
    given = options.threads or sorted(have["threads"])
    own.threads = [threads for threads in given if threads in have["threads"]]
    return bool(own.cases and own.providers and own.threads)


def _measure(
    bench: Bench,
    own: argparse.Namespace,
    rows: list[dict],
    outcome: Outcome,
    progress: Progress,
) -> None:
    own.memory = False
    before = {recorded.key(row): row for row in rows}
    table = _Table(bench, own, progress)
    drifts: list[float] = []

    def show(group: list[dict]) -> None:
        pairs = [(before[k], row) for row in group if (k := recorded.key(row)) in before]
        still = [noise.of_quantiles(*pair).value for pair in pairs if not pair[1]["backend"]]
        drift = median(still) if still else 1.0
        drifts.extend(still)
        for old, new in pairs:
            if new["backend"]:
                outcome.rows.append(_row(old, new, noise.of_quantiles(old, new, drift)))
                table.show(outcome.rows[-1])

    report = measuring.measure(bench, own, progress, show)
    outcome.wrong += report.wrong
    if drifts:
        text = f"took {min(drifts):.3g} to {max(drifts):.3g} times as long"
        outcome.notes.append(f"{bench.op}: what is not bwt's {text}; ratios are divided by it")
    _note_versions(rows, report.rows, outcome)


def _row(old: dict, new: dict, ratio: noise.Ratio) -> dict[str, Any]:
    names = ("op", "case", "mode", "device", "threads", "provider")
    return {
        **{name: new[name] for name in names},
        **{"before_ms": old["median_ms"], "now_ms": new["median_ms"]},
        **{"ratio": ratio.value, "low": ratio.low, "high": ratio.high},
        "verdict": noise.verdict(ratio),
    }


def _note_versions(rows: list[dict], now: list[dict], outcome: Outcome) -> None:
    old = {row["versions"].get("torch") for row in rows}
    new = {row["versions"].get("torch") for row in now}
    if old and new and old != new:
        words = [" and ".join(sorted(map(str, x))) for x in (old, new)]
        outcome.notes.append(f"recorded with torch {words[0]}, now it is {words[1]}")


class _Table:
    """A line for each row, as they come."""

    HEADER = ("case", "provider", "threads", "before", "now", "now / before", "")

    def __init__(self, bench: Bench, options: argparse.Namespace, progress: Progress):
        names = [summary.name_of(c.name, mode) for c in options.cases for mode in c.modes]
        first = max(map(len, names), default=0)
        second = max((len(p.name) for p in options.providers), default=0)
        self.widths = [max(first, 4), max(second, 8), 7, 8, 8, 22, 9]
        self.op, self.progress, self.begun = bench.op, progress, False

    def show(self, row: dict) -> None:
        if not self.begun:
            self.begun = True
            self.progress.tell(f"{self.op}:", summary.aligned(list(self.HEADER), self.widths, 2))
        ratio = noise.Ratio(row["ratio"], row["low"], row["high"])
        times = [summary.duration(row[name] / 1e3) for name in ("before_ms", "now_ms")]
        verdict = "" if row["verdict"] == pairing.SAME else row["verdict"]
        name = summary.name_of(row["case"], row["mode"])
        cells = [name, row["provider"], str(row["threads"]), *times, str(ratio), verdict]
        self.progress.tell(summary.aligned(cells, self.widths, 2))


def _those(outcome: Outcome, verdict: str) -> list[dict]:
    return [row for row in outcome.rows if row["verdict"] == verdict]


def _foot(outcome: Outcome) -> list[str]:
    lines = [*outcome.notes, *outcome.wrong, *outcome.broken]
    for verdict in ("faster", "slower"):
        for row in _those(outcome, verdict):
            where = f"{row['op']} {row['case']} {row['mode']}, {row['threads']} thread(s)"
            ratio = noise.Ratio(row["ratio"], row["low"], row["high"])
            lines.append(f"{verdict}: {where}: {row['provider']} takes {ratio} times as long")
    slower, faster = (len(_those(outcome, verdict)) for verdict in ("slower", "faster"))
    text = f"{len(outcome.rows)} compared: {slower} slower, {faster} faster"
    if outcome.wrong:
        text += f", {len(outcome.wrong)} results wrong"
    code = _exit_code(outcome)
    return [*lines, f"{text} (exit code {code})" if code else text]


if __name__ == "__main__":
    sys.exit(main())
