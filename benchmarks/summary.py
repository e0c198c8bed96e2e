"""What a run shows: the table, and the claims held against it."""

from collections.abc import Iterable
from dataclasses import dataclass

import noise

FORWARD = "forward"


MET, UNDECIDED, MISSED = "met", "undecided", "missed"


@dataclass(frozen=True)
class Claim:
    """Time per unit of `slow` over that of `fast`, held against a target; `goal` says in words what
    the target stands for, and `remark` what is known about it."""

    case: str
    slow: str
    fast: str
    at_least: float | None = None
    at_most: float | None = None
    mode: str = FORWARD
    goal: str = ""
    remark: str = ""

    def verdict(self, ratio: noise.Ratio) -> str:
        """Judged by the medians; a target within the interval around their ratio is not missed."""
        if self.at_least is not None:
            met, reachable = ratio.value >= self.at_least, ratio.high >= self.at_least
        else:
            met, reachable = ratio.value <= self.at_most, ratio.low <= self.at_most
        return MET if met else UNDECIDED if reachable else MISSED

    def __str__(self) -> str:
        wanted = (
            f"at least {self.at_least:.3g}"
            if self.at_least is not None
            else f"at most {self.at_most:.3g}"
        )
        return f"{self.case} {self.mode}: {self.slow} / {self.fast} {wanted}"


def per_unit(row: dict, column: str = "median_ms") -> float:
    """Seconds per unit."""
    return row[column] / 1e3 / row["units"]


def judge(claims: Iterable[Claim], rows: list[dict]) -> list[dict]:
    """Each claim, wherever both of its providers were measured in one run."""
    found = []
    for claim in claims:
        groups: dict[tuple, dict[str, dict]] = {}
        for row in rows:
            if (row["case"], row["mode"]) == (claim.case, claim.mode):
                groups.setdefault((row["device"], row["threads"]), {})[row["provider"]] = row
        for (device, threads), group in groups.items():
            if claim.slow in group and claim.fast in group:
                place = {"device": device, "threads": threads}
                found.append({**_judged(claim, group), **_limit(claim, group), **place})
    return found


def _judged(claim: Claim, group: dict[str, dict]) -> dict:
    slow, fast = (
        [ms / group[name]["units"] for ms in group[name]["samples_ms"]]
        for name in (claim.slow, claim.fast)
    )
    ratio = noise.of_medians(slow, fast)
    return {
        "claim": str(claim),
        "goal": claim.goal,
        "remark": claim.remark,
        "measured": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "verdict": claim.verdict(ratio),
    }


def _limit(claim: Claim, group: dict[str, dict]) -> dict:
    """What `fast` could reach at the bound of the machine, if one was measured beside it."""
    bound = next((row for row in group.values() if row["bound"]), None)
    if bound is None or claim.at_least is None:
        return {}
    at_bound = per_unit(group[claim.slow]) / per_unit(bound)
    return {"limit": at_bound, "bound": bound["provider"]}


def sentence(judged: dict) -> str:
    ratio = noise.Ratio(judged["measured"], judged["low"], judged["high"])
    text = f"target {judged['verdict']}: {judged['claim']}: measured {ratio}"
    if "limit" in judged:
        text += f" of {judged['limit']:.3g} at the bound {judged['bound']}"
    text += f", {judged['threads']} thread(s)"
    if judged["verdict"] == MET:
        return text
    reasons = [words for words in (judged["goal"], judged["remark"]) if words]
    return "\n".join([text, *(f"    {words}" for words in reasons)])


class Table:
    """Lines as they come: the columns are wide enough for every row there may be."""

    def __init__(self, cases: list[str], providers: list[str], unit: str, baselines: list[str]):
        baseline = max(map(len, baselines), default=1)
        bound = max(map(len, providers), default=1)
        widths = [max(map(len, names), default=1) for names in (cases, providers)]
        names = ["case", "provider", "threads", f"per {unit}", "p20", "p80", "speed-up", "x bound"]
        widths += [7, max(7, 4 + len(unit)), 7, 7, 5 + baseline, 5 + bound]
        self.widths = [max(w, len(name)) for w, name in zip(widths, names, strict=True)]
        self.header = self._aligned(names)

    def lines(self, group: list[dict]) -> list[str]:
        """Of rows that were measured together."""
        bound = next((row for row in group if row["bound"]), None)
        return [self._aligned(_cells(row, bound)) for row in group]

    def _aligned(self, cells: list[str]) -> str:
        """Names to the left, figures to the right."""
        return aligned(cells, self.widths, left=2)


LEGEND = "speed-up: over the baseline named; x bound: time over the bound's time"


def name_of(case: str, mode: str) -> str:
    return case if mode == FORWARD else f"{case} {mode}"


def _cells(row: dict, bound: dict | None) -> list[str]:
    times = [duration(per_unit(row, f"{q}_ms")) for q in ("median", "p20", "p80")]
    faster = f"{figure(row['ratio'])} {row['baseline']}" if row["baseline"] else "-"
    limit = f"{figure(per_unit(row) / per_unit(bound))} {bound['provider']}" if bound else "-"
    name = name_of(row["case"], row["mode"])
    return [name, row["provider"], str(row["threads"]), *times, faster, limit]


def gpu_line(row: dict) -> str:
    """What a row has of a GPU beside its time; `-` where nothing is known."""

    def percent(name: str) -> str:
        return "-" if row.get(name) is None else f"{row[name]:.1f}%"

    where = f"{row['case']} {row['mode']} {row['provider']}"
    warm = f"warm {row['median_ms']:.4g} ms, " if row["cache"] == "warm" else ""
    return (
        f"{where}: L2 {warm}cold {row['cold_ms']:.4g} ms, "
        f"{row['host_us']:.3g} us to launch, {percent('bandwidth_percent')} of bandwidth, "
        f"{percent('arithmetic_percent')} of arithmetic"
    )


def figure(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{figure(seconds / size)} {unit}"
    return f"{figure(seconds / 1e-9)} ns"


def aligned(cells: list[str], widths: list[int], left: int) -> str:
    parts = [
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(parts).rstrip()
