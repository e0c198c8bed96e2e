"""The tuner without a GPU: its whole flow on interpreted kernels, with a clock that is told what to
say. Runs in a process that interprets (see triton_aot.Interpreter)."""

import io
import os
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from unittest.mock import patch


def plain_call(module, function, *args, **options):
    return getattr(import_module(module), function)(*args, **options)


class Clock:
    """Seconds of a launch from its config; fewer warps are faster, down to `best`."""

    def __init__(self, best: int):
        self.best, self.launches = best, []

    def __call__(self, call):
        launch = call.func.__self__
        self.launches.append(launch.name)
        return 1.0 + abs(launch.config.warps - self.best) / 10


def tiny():
    """What can be tuned, with sizes that can be interpreted."""
    every = import_module("bwt.tuning.subjects")
    every.FULL = every.Sizes(64, 2, (1, 1), (70,), (260,), 4, (5,), 8)
    return every


def subjects(keys):
    every = tiny()
    return every.subjects([every.Key(*key) for key in keys], "sm_80", every.FULL)


def flow(keys, folder, best=2, fault=None, limit=1e9):
    """(what was said, the entries found, the text of the table, names of launches timed)."""
    os.environ["XDG_CACHE_HOME"] = folder
    chosen = subjects(keys)
    search, device, tuned = modules()
    said, clock = [], Clock(best)
    call = plain_call if fault is None else FAULTS[fault]
    machine = search.Machine("sm_80", "cpu", call, clock)

    def keep(entries):
        device.write("NVIDIA Test 1", "sm_80", entries)

    found = search.tune(chosen, machine, limit=limit, say=said.append, keep=keep)
    path = tuned.path("Test-1")
    entries = {tuple(key): [tuple(c) for c in configs] for key, configs in found.items()}
    return said, entries, path.read_text() if path.exists() else "", clock.launches


def modules():
    names = ("bwt.tuning.search", "bwt.tuning.device", "bwt.kernels.tuned")
    return [import_module(name) for name in names]


def wrong_with_four_warps(module, function, *args, **options):
    """As a kernel would be whose tiles do not fit together: one value is off."""
    found = plain_call(module, function, *args, **options)
    if function.endswith("_forward") and _warps(module) == 4:
        found[0].view(-1)[0] += 0.01
    return found


def refused_with_four_warps(module, function, *args, **options):
    if _warps(module) == 4:
        raise RuntimeError("out of resource: shared memory\nRequired: 99999")
    return plain_call(module, function, *args, **options)


def _warps(module) -> int:
    """Of the only config that stands for sm_80 alone: the one that is being tried."""
    from bwt.kernels.configs import TABLE

    op = module.rpartition(".")[2]
    [configs] = [c for key, c in TABLE.items() if key[0] == op and key[4] == "sm_80"]
    return configs[0].warps


FAULTS = {"wrong": wrong_with_four_warps, "refused": refused_with_four_warps}


def check_and_time_once(key, check):
    """Names of the launches that the present config's works time."""
    [subject, *_] = subjects([key])
    if not check:
        works = (work._replace(check=lambda call: None) for work in subject.works)
        subject = replace(subject, works=tuple(works))
    (search, _, _), clock = modules(), Clock(1)
    from bwt.kernels.configs import lookup

    config = lookup(*key, "sm_80")[0]
    search.seconds(subject, config, search.Machine("sm_80", "cpu", plain_call, clock))
    return clock.launches


def command(folder, key, *flags):
    """(exit code, output, table) of `bwt tune` on a machine that pretends to have a GPU."""
    import torch

    from bwt.cli import main

    tiny()
    search, device, _ = modules()
    op, kernel, mode, size = key
    words = ["tune", op, "--kernel", kernel, "--dtype", mode, "--size", str(size), *flags]
    text = io.StringIO()
    machine = search.Machine("sm_80", "cpu", plain_call, Clock(2))
    replaced = [
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "get_device_name", lambda index=None: "NVIDIA Test 1"),
        patch.object(device, "machine", lambda: machine),
        patch.dict(os.environ, XDG_CACHE_HOME=folder),
        redirect_stdout(text),
    ]
    with ExitStack() as stack:
        for one in replaced:
            stack.enter_context(one)
        code = main(words)
    table = Path(folder) / "bwt/devices/Test-1.json"
    return code, text.getvalue(), table.read_text() if table.exists() else ""
