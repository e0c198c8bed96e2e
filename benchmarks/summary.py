"""What a run shows: the table, and the claims held against it."""

from collections.abc import Iterable
from dataclasses import dataclass

FORWARD = "forward"


@dataclass(frozen=True)
class Claim:
    """Time per unit of `slow` over that of `fast`, held against a wanted value."""

    case: str
    slow: str
    fast: str
    at_least: float | None = None
    at_most: float | None = None
    mode: str = FORWARD

    def verdict(self, ratio: float) -> str:
        held = ratio >= self.at_least if self.at_least is not None else ratio <= self.at_most
        return "PASS" if held else "MISS"

    def __str__(self) -> str:
        wanted = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
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
                ratio = per_unit(group[claim.slow]) / per_unit(group[claim.fast])
                held = dict(claim=str(claim), measured=ratio, verdict=claim.verdict(ratio))
                limit = _limit(claim, group)
                found.append({**held, **limit, "device": device, "threads": threads})
    return found


def _limit(claim: Claim, group: dict[str, dict]) -> dict:
    """What `fast` could reach at the bound of the machine, if one was measured beside it."""
    bound = next((row for row in group.values() if row["bound"]), None)
    if bound is None or claim.at_least is None:
        return {}
    at_bound = per_unit(group[claim.slow]) / per_unit(bound)
    return {"limit": at_bound, "bound": bound["provider"]}


def sentence(judged: dict) -> str:
    text = f"{judged['verdict']} {judged['claim']}: measured {judged['measured']:.3g}"
    if "limit" in judged:
        text += f" of {judged['limit']:.3g} at the bound {judged['bound']}"
    return f"{text}, {judged['threads']} thread(s)"


def table(rows: list[dict], unit: str) -> str:
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        group = (row["case"], row["mode"], row["dtype"], row["device"], row["threads"])
        groups.setdefault(group, []).append(row)
    lines = [["case", "provider", "threads", f"per {unit}", "p20", "p80", "speed-up", "x bound"]]
    for group in groups.values():
        bound = next((row for row in group if row["bound"]), None)
        lines += [_line(row, bound) for row in group]
    devices = ", ".join(dict.fromkeys(row["device"] for row in rows)) or "nothing measured"
    legend = "speed-up: over the baseline named; x bound: time over the bound's time"
    return f"{_align(lines)}\n{devices}; {legend}"


def _line(row: dict, bound: dict | None) -> list[str]:
    name = row["case"] if row["mode"] == FORWARD else f"{row['case']} {row['mode']}"
    times = [duration(per_unit(row, f"{q}_ms")) for q in ("median", "p20", "p80")]
    faster = f"{_figure(row['ratio'])} {row['baseline']}" if row["baseline"] else "-"
    limit = f"{_figure(per_unit(row) / per_unit(bound))} {bound['provider']}" if bound else "-"
    return [name, row["provider"], str(row["threads"]), *times, faster, limit]


def _figure(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{_figure(seconds / size)} {unit}"
    return f"{_figure(seconds / 1e-9)} ns"


def _align(lines: list[list[str]]) -> str:
    """Names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
