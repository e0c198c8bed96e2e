"""CUDA graphs of a training step: captured once for each phase of a run, replayed for each step.

The first steps of a phase run as usual: they are steps of the training like the others, in which
kernels are compiled and memory is taken. What is captured draws from the same generators, so that
a run is the same with graphs and without.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

WARMUP = 3  # steps of each phase before it is captured


class Graphs:
    def __init__(self, step: Callable[[Any], None], generators: Sequence[torch.Generator]):
        self.step, self.generators = step, generators
        self.taken: dict[Any, int] = {}  # steps of each phase
        self.captured: dict[Any, torch.cuda.CUDAGraph] = {}
        self.side = torch.cuda.Stream()

    def run(self, phase: Any) -> None:
        taken = self.taken[phase] = self.taken.get(phase, 0) + 1
        if taken <= WARMUP:
            self._aside(phase)
            return
        if phase not in self.captured:
            self.captured[phase] = self._capture(phase)
        self.captured[phase].replay()

    def _aside(self, phase: Any) -> None:
        """On the stream of the capture, as gradients remember theirs."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.step(phase)
        torch.cuda.current_stream().wait_stream(self.side)

    def _capture(self, phase: Any) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # The phases of a run never overlap, so that they can share memory.
        pool = next((x.pool() for x in self.captured.values()), None)
        with torch.cuda.graph(graph, pool=pool, stream=self.side):
            self.step(phase)
        return graph
