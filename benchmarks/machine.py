"""The GPU machine, seen without torch: usable before anything is built."""

import subprocess
from collections.abc import Callable
from glob import glob
from typing import Any

QUERY = {
    "name": "name",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "memory_free_mib": "memory.free",
    "clock_mhz": "clocks.sm",
    "clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
    "capability": "compute_cap",
}
UNITS = ("_mib", "_mhz", "_w", "_c")
NO_GPU = "make gpu: no GPU here: nvidia-smi finds none; run it on a machine with an NVIDIA GPU"
NO_DRIVER = (
    "make gpu: there is a GPU, but nvidia-smi does not answer ({reason}); install its driver, or "
    "start the container with the driver's tools (docker run --gpus all)"
)
Run = Callable[[list[str]], str]


def output(command: list[str]) -> str:
    """What a command prints.

    Raises:
        OSError: it is missing, fails or does not end.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired as fault:
        raise OSError(f"{command[0]} does not answer") from fault
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise OSError(f"{command[0]}: {words[-1]}")
    return done.stdout


def query(run: Run | None = None) -> list[dict[str, Any]]:
    """One record for each GPU; a value that nvidia-smi does not tell is None."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY.values())}"]
    text = (run or output)([*command, "--format=csv,noheader,nounits"])
    return [_record(line) for line in text.splitlines() if line.strip()]


def _record(line: str) -> dict[str, Any]:
    values = [value.strip() for value in line.split(",")]
    return {name: _value(name, value) for name, value in zip(QUERY, values, strict=True)}


def _value(name: str, text: str) -> str | float | None:
    if text.startswith("["):  # [N/A], [Not Supported]
        return None
    return float(text) if name.endswith(UNITS) else text


def fault(run: Run | None = None, devices: Callable[[], list[str]] | None = None) -> str | None:
    """Why nothing can run on a GPU here, in one line; None if something can."""
    found = (devices or (lambda: glob("/dev/nvidia[0-9]*")))()
    try:
        return None if query(run) else NO_GPU
    except (OSError, ValueError) as reason:
        return NO_DRIVER.format(reason=reason) if found else NO_GPU


def circumstances(run: Run | None = None) -> dict[str, Any]:
    """Of the first GPU, as rows carry them; empty where nvidia-smi does not answer."""
    try:
        records = query(run)
    except (OSError, ValueError):
        return {}
    kept = ("driver", "clock_mhz", "clock_max_mhz", "memory_clock_mhz", "power_limit_w")
    kept = (*kept, "temperature_c")
    return {name: records[0][name] for name in kept} if records else {}
