"""CPU threads of this process: what OpenMP does while it waits, and how many CPUs there are.

Imports no torch: libgomp reads its settings when torch is loaded.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Threads that wait for a partner spin for some time before they sleep. On a CPU that other
# processes use, the partner may have no core, and spinning takes it from the others: with the
# default of libgomp, training on two threads becomes ten times slower. A few microseconds suffice.
SPINNING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
CGROUPS = Path("/sys/fs/cgroup")


def set_environment() -> None:
    """Set what OpenMP reads when torch is loaded, unless it is loaded or the user has set it."""
    if "torch" in sys.modules:
        return
    if not any(name in os.environ for name in (*SPINNING, "OMP_WAIT_POLICY")):
        os.environ.update(SPINNING)
    if (limit := cpu_limit()) < visible_cpus() and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(limit)


def cpu_limit() -> int:
    """Return the number of CPUs that this process may use: those it may run on, or fewer where a
    container has a quota of CPU time."""
    return min([visible_cpus(), *(max(1, math.ceil(quota)) for quota in _quotas())])


def visible_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas() -> Iterator[float]:
    """Yield the quotas of this process's control groups and of those they are part of."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = CGROUPS / controllers
        # A container sees its own group as the root, whatever its path is called outside.
        for folder in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
            if (quota := _quota(folder)) is not None:
                yield quota
            if folder == top:
                break


def _quota(group: Path) -> float | None:
    """Return how many CPUs' time a control group may use (version 2, then 1), or None."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # none, "max", or none of ours to read
        return None
