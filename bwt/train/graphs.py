"""CUDA graphs of a training step: captured once for each phase of a run, replayed for each step.

The first steps of a phase run as usual: they are steps of the training like the others, in which
kernels are compiled and memory is taken. What is captured draws from the same generators, so that
a run is the same with graphs and without.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bwt.runs.config import TrainConfig
from bwt.train import distributed

WARMUP = 3  # steps of each phase before it is captured


class Graphs:
    """required: a step that cannot be captured is an error; otherwise it is said once, and steps
    go on as usual, for nothing has happened yet."""

    def __init__(
        self,
        step: Callable[[Any], None],
        generators: Sequence[torch.Generator],
        *,
        required: bool = False,
    ):
        self.step, self.generators, self.required = step, generators, required
        self.taken: dict[Any, int] = {}  # steps of each phase
        self.captured: dict[Any, torch.cuda.CUDAGraph] = {}
        self.side = torch.cuda.Stream()
        self.failed = False

    def run(self, phase: Any) -> None:
        taken = self.taken[phase] = self.taken.get(phase, 0) + 1
        if taken > WARMUP and phase not in self.captured and not self.failed:
            self._try_capture(phase)
        if phase in self.captured:
            self.captured[phase].replay()
        else:
            self._aside(phase)

    def _aside(self, phase: Any) -> None:
        """On the stream of the capture, as gradients remember theirs."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.step(phase)
        torch.cuda.current_stream().wait_stream(self.side)

    def _try_capture(self, phase: Any) -> None:
        stream = torch.cuda.current_stream()
        try:
            self.captured[phase] = self._capture(phase)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # torch leaves that of the capture in place
            # What ends a capture that was spoiled only says that it was.
            reason = str(error.__context__ or error).splitlines()[0]
            if self.required:
                raise RuntimeError(f"graph on: a step cannot be captured: {reason}") from error
            self.failed = True
            text = f"steps are not captured as a CUDA graph, and are slower: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _capture(self, phase: Any) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # The phases of a run never overlap, so that they can share memory.
        pool = next((x.pool() for x in self.captured.values()), None)
        with torch.cuda.graph(graph, pool=pool, stream=self.side):
            self.step(phase)
        return graph


def uses_graphs(config: TrainConfig, device: torch.device) -> bool:
    """Return whether steps are captured and replayed.

    Raises:
        ValueError: the configuration asks for graphs, which cannot be had.
    """
    if config.compile == "graphs" and device.type != "cuda":
        raise ValueError(f"compile graphs means CUDA graphs, and this runs on {device.type}")
    if config.graph == "off":
        return False
    reason = why_no_graph(config, device)
    if reason is not None and config.graph == "on":
        raise ValueError(f"graph on: {reason}")
    return reason is None


def why_no_graph(config: TrainConfig, device: torch.device) -> str | None:
    """Return why steps cannot be captured as a CUDA graph, or None."""
    if device.type != "cuda":
        return f"CUDA graphs need a GPU, and this runs on {device.type}"
    if distributed.world_size() > 1:
        return "several processes exchange gradients in each step, which is not captured"
    if config.compile != "off":
        return "compiled code is captured by torch itself: --compile graphs"
    return None
