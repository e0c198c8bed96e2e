"""The command that every benchmark file is."""

import argparse
import json

import arguments
import measuring
import options as every
import records
import summary
from common import Bench
from progress import Progress

WRONG, BROKEN, MISSED, SLOWER = 1, 2, 3, 4
EXIT_CODES = (
    f"Exit codes: 0; {WRONG} if a provider's result is WRONG; {BROKEN} for bad arguments; "
    f"{MISSED} if a target is missed by more than noise (the ratio of medians and its whole 95% "
    "interval, by drawing the samples again, are beyond it)"
)


def parser_of(bench: Bench) -> argparse.ArgumentParser:
    parser = arguments.Parser(
        description=f"Times {bench.op}. Every provider is checked against bwt.reference before "
        "and after.",
        epilog=f"{EXIT_CODES}.",
    )
    add = parser.add_argument
    cases, providers = (
        ", ".join(every.names_of(x)) for x in (every.all_cases(bench), bench.providers)
    )
    add("--cases", nargs="+", metavar="NAME", help=f"names or patterns of: {cases}")
    add("--providers", nargs="+", metavar="NAME", help=f"of: {providers}")
    every.add_common(parser)
    add("--memory", action="store_true", help="measure peak memory too (recorded as peak_mb)")
    add("--record", action="store_true", help=f"put rows into {every.results(bench)}")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    if bench.plot:
        add("--plot", metavar="FILE.svg", help=bench.plot_help)
    return parser


def main(bench: Bench, argv: list[str] | None = None) -> int:
    parser = parser_of(bench)
    options = parser.parse_args(argv)
    plot = getattr(options, "plot", None)
    try:
        every.choose(bench, options)
        every.check_plot(plot)
    except ValueError as error:
        parser.error(str(error))
    progress = Progress(quiet=options.json)
    table = measuring.table_of(bench, options)
    progress.tell(*_head(bench, options), table.header)
    try:
        report = measuring.measure(
            bench, options, progress, lambda rows: rows and progress.tell(*table.lines(rows))
        )
    finally:
        progress.clear()
    claims = summary.judge(bench.claims, report.rows)
    code = _exit_code(report, claims)
    progress.tell(*_foot(bench, report, claims, code))
    if plot:
        bench.plot(report.rows, plot)
    if options.record:
        records.record(every.results(bench), report.rows)
    if options.json:
        notes = {"unavailable": report.unavailable, "wrong": report.wrong}
        print(json.dumps({"op": bench.op, "rows": report.rows, "claims": claims, **notes}))
    return code


def _head(bench: Bench, options: argparse.Namespace) -> list[str]:
    where = records.cpu_name() if "cpu" in options.device else "CUDA"
    caches = ", caches emptied before each call" if options.cold else ""
    lines = [f"{bench.op} on {where}{caches}; {summary.LEGEND}"]
    left_out = [p.name for p in bench.providers if p not in options.providers]
    if options.quick and left_out:
        lines.append(f"quick: without {', '.join(left_out)}")
    return lines


def _exit_code(report: measuring.Report, claims: list[dict]) -> int:
    if report.wrong:
        return WRONG
    return MISSED if any(claim["verdict"] == summary.MISSED for claim in claims) else 0


def _foot(bench: Bench, report: measuring.Report, claims: list[dict], code: int) -> list[str]:
    lines = [bench.notes(report.rows)] if bench.notes and report.rows else []
    lines += [summary.gpu_line(row) for row in report.rows if "cold_ms" in row]
    lines += [f"{text} ({', '.join(cases)})" for text, cases in report.unavailable.items()]
    lines += map(summary.sentence, claims)
    missed = sum(claim["verdict"] == summary.MISSED for claim in claims)
    if missed:
        lines.append(f"{missed} of {len(claims)} targets missed (exit code {MISSED})")
    if report.wrong:
        lines.append(f"{len(report.wrong)} of the results are wrong, see above (exit code {code})")
    return lines if report.rows else [*lines, "nothing was measured"]
