"""One side of a comparison: a process that has a package, and times what it is asked for.

    python benchmarks/serving.py OP SETTINGS

Requests come on stdin and are answered on stdout, a line of JSON each. The benchmarks are always
the present ones: what differs between two sides is the `bwt` that they import.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measuring
import noise
import options
import timing
import torch
from common import Bench, Provider
from progress import Progress

TRIES = 3


class Lost(Exception):
    """A process has ended or cannot serve; the message says why. `present` if its package is."""

    def __init__(self, reason: str, present: bool):
        super().__init__(reason)
        self.present = present


class Silent(Progress):
    """Who asks knows what he waits for."""

    def say(self, text: str) -> None:
        pass


class Server:
    """What a process does; tests have it without one."""

    def __init__(self, bench: Bench, settings: SimpleNamespace):
        self.bench, self.settings = bench, settings
        self.clocks: dict[str, measuring.Clock] = {}
        gc.disable()  # and collected by hand: it takes longer than a sample
        self.inputs: tuple[Any, Any] = (None, None)  # where they belong, and they
        self.group: measuring.Group | None = None
        self.providers: list[Provider] = []
        self.progress = Silent(quiet=True)

    def open(self, case: str, mode: str, device: str, threads: int, providers: list[str]) -> dict:
        """Prepares a group, after which samples of it can be asked for."""
        [found] = [x for x in options.all_cases(self.bench) if x.name == case]
        if self.inputs[0] != (case, device):
            self.inputs = (case, device), self.bench.inputs(found, device)
        if device not in self.clocks:
            self.clocks[device] = measuring.Clock(device, self.settings.cold)
        clock = self.clocks[device]
        torch.set_num_threads(threads)
        self.group = measuring.Group(self.bench, found, mode, self.inputs[1], clock, threads)
        wanted = [p for p in self.bench.providers if p.name in providers and device in p.devices]
        report = measuring.Report()
        self.group.prepare(wanted, report, self.progress)
        self.providers = [p for p in wanted if p.name in self.group.ready]
        budget = (self.settings.repeats, self.settings.seconds, clock.pace, noise.FEWEST_PAIRS)
        plans = {
            name: timing.plan(call, clock.clock, *budget)._asdict()
            for name, (call, _) in self.group.ready.items()
        }
        gc.collect()
        return {"plans": plans, "unavailable": list(report.unavailable), "wrong": report.wrong}

    def sample(self, provider: str, loops: int, warm: bool) -> dict:
        """The best of some tries, where they are short: others on the machine interrupt them."""
        call, _ = self.group.ready[provider]
        if warm:
            call()
        tries = TRIES if warm else 1
        return {"seconds": min(self.group.clock.clock(call, loops) for _ in range(tries))}

    def close(self) -> dict:
        """Checks the results once more."""
        report = measuring.Report()
        right = self.group.still_right(self.providers, report, self.progress)
        self.group, self.providers = None, []
        return {"wrong": report.wrong, "right": sorted(right)}


class Worker:
    """A Server in a process of its own, with the package of `tree`, or the present one."""

    def __init__(self, op: str, settings: dict[str, Any], tree: Path | None):
        self.present = tree is None
        environment = dict(os.environ)
        if tree is not None:
            environment["PYTHONPATH"] = str(tree)
        given = json.dumps({**settings, "tree": None if tree is None else str(tree)})
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, __file__, op, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            text=True,
        )

    def greet(self) -> None:
        """Waits until it has imported everything."""
        self._answer()

    def open(self, **request) -> dict:
        return self._ask("open", request)

    def sample(self, **request) -> dict:
        return self._ask("sample", request)

    def close(self) -> dict:
        return self._ask("close", {})

    def end(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def _ask(self, name: str, request: dict) -> dict:
        try:
            self.process.stdin.write(json.dumps({"do": name, **request}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # why, the answer tells
        return self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            lines = [text for text in self.errors.read().splitlines() if text.strip()]
            reason = (lines or [f"ended with exit code {self.process.wait()}"])[-1].strip()
            raise Lost(reason, self.present)
        answer = json.loads(line)
        if "fault" in answer:
            raise Lost(answer["fault"], self.present)
        return answer


def serve(op: str, settings: SimpleNamespace, requests, answers) -> None:
    def answer(document: dict) -> None:
        print(json.dumps(document), file=answers, flush=True)

    try:
        server = _server(op, settings)
        answer({})
        for line in requests:
            request = json.loads(line)
            answer(getattr(server, request.pop("do"))(**request))
    except Exception as fault:  # of the code under test: the other side goes on
        words = str(fault).strip().splitlines() or [""]
        answer({"fault": f"{type(fault).__name__}: {words[0]}"})


def _server(op: str, settings: SimpleNamespace) -> Server:
    bench = importlib.import_module(f"bench_{op}").BENCH
    if settings.tree is not None:
        bwt, kernels = map(importlib.import_module, ("bwt", "bwt.kernels"))
        for place in (bwt.__file__, *kernels.__path__):
            if not Path(place).resolve().is_relative_to(Path(settings.tree).resolve()):
                raise ImportError(f"bwt comes from {place} instead of {settings.tree}")
    timing.fix_allocator(settings.pages)
    return Server(bench, settings)


def main() -> None:
    # Libraries that print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    op, settings = sys.argv[1:]
    serve(op, SimpleNamespace(**json.loads(settings)), sys.stdin, answers)


if __name__ == "__main__":
    main()
