"""How long the host is busy with one call of an op and with its gradient, whatever the device does.

    python benchmarks/host_time.py [--ops attention] [--layers 16] [--repeats 60]

On a machine without a GPU the ops run on the emulated one of tests/emulator/gpu, with a driver that
launches nothing: dispatch, checks, autograd, allocation and Triton's packing of arguments in C are
done as on a GPU machine, and the kernels' results are whatever memory held. Torch's own kernels for
GPUs do not exist there, so that the peer, torch.nn.functional.scaled_dot_product_attention, is the
one for CPUs on tensors so small that its arithmetic does not count. It is written in C++ throughout
and launches nothing either; that for GPUs allocates more and calls the driver several times. What
hmm_filter and selective_scan leave to torch, sums and marks, runs on the CPU and takes longer than
its launch would. On a machine with a GPU all run there, and the time until a call returns is taken.

Calls follow each other in a chain, as layers do, and backward() is called once for all of them. The
time is that of the process on the CPU, so that other work on the machine is not counted; samples of
all ops alternate.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1] / "tests"
PEER = "sdpa"


class Subject(NamedTuple):
    """A chain x -> layer(x, *own): each layer has tensors of its own."""

    device: str
    layer: Callable
    shape: tuple[int, ...]  # of x
    own: Callable  # device -> the tensors of one layer


def find_device() -> bool:
    """Whether there is a GPU; otherwise one is emulated. To be called before torch is imported."""
    sys.path.insert(0, str(TESTS))
    from emulator.gpu import device

    if device.torch_is_for_gpus():
        import torch

        if not torch.cuda.is_available():
            sys.exit("host_time.py needs a GPU, or a torch for CPUs beside which one is emulated")
        return True
    device.load()
    from emulator.gpu import torch_cuda, triton_driver

    torch_cuda.install(1)
    triton_driver.install(executed=False)
    return False


def subjects(has_gpu: bool) -> dict[str, Subject]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from bwt import ops

    heads, tokens = (1, 1, 4, 16), (1, 4, 16)
    uniform = torch.full((2, 4, 4), 0.25)

    def drawn(*shapes):
        return lambda device: [torch.randn(s, device=device, requires_grad=True) for s in shapes]

    def filtered(x, transition):
        symbols = torch.zeros((2, 4), dtype=torch.int64, device=x.device)
        found = ops.hmm_filter(symbols, x, transition, transition, check=False)
        return found.filtered[:, -1]

    return {
        PEER: Subject(
            "cuda" if has_gpu else "cpu",
            lambda x, k, v: scaled_dot_product_attention(x, k, v, is_causal=True),
            heads,
            drawn(heads, heads),
        ),
        "attention": Subject(
            "cuda", lambda x, k, v: ops.attention(x, k, v).out, heads, drawn(heads, heads)
        ),
        "attention-captures": Subject(
            "cuda",
            lambda x, k, v: ops.attention(x, k, v, capture=("weights", "entropy")).out,
            heads,
            drawn(heads, heads),
        ),
        "selective_scan": Subject(
            "cuda",
            lambda x, delta, A, B, C: ops.selective_scan(x, delta, A, B, C),
            tokens,
            drawn(tokens, (16, 4), (1, 4, 4), (1, 4, 4)),
        ),
        "hmm_filter": Subject(
            "cuda",
            filtered,
            (2, 4),
            lambda device: [uniform.to(device).requires_grad_()],
        ),
    }


class Chain:
    def __init__(self, subject: Subject, layers: int):
        import torch

        self.subject = subject
        self.x = torch.rand(subject.shape, device=subject.device, requires_grad=True)
        self.own = [subject.own(subject.device) for _ in range(layers)]
        self.samples: list[tuple[float, float]] = []

    def sample(self) -> None:
        """Microseconds of a layer and of its gradient."""
        import torch

        x, layer = self.x, self.subject.layer
        start = time.process_time()
        for own in self.own:
            x = layer(x, *own)
        middle = time.process_time()
        torch.autograd.grad(x, [self.x, *sum(self.own, [])], torch.ones_like(x))
        end = time.process_time()
        scale = 1e6 / len(self.own)
        self.samples.append(((middle - start) * scale, (end - middle) * scale))

    def medians(self) -> tuple[float, float]:
        return tuple(median(times) for times in zip(*self.samples, strict=True))


def measure(
    has_gpu: bool, layers: int, repeats: int, names: list[str]
) -> dict[str, tuple[float, float]]:
    """Median microseconds forward and backward of one layer, by op; all ops if none is named."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    known = subjects(has_gpu)
    chains = {name: Chain(known[name], layers) for name in ([PEER, *names] if names else known)}
    for chain in chains.values():
        chain.sample()  # compiles
        chain.samples.clear()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for chain in chains.values():
                if has_gpu:
                    torch.cuda.synchronize()
                chain.sample()
    finally:
        gc.enable()
        torch.set_num_threads(threads)
    return {name: chain.medians() for name, chain in chains.items()}


def table(times: dict[str, tuple[float, float]]) -> str:
    peer = sum(times[PEER])
    lines = [f"{'op':<24}{'forward us':>12}{'backward us':>13}{'of ' + PEER:>10}"]
    for name, (forward, backward) in times.items():
        ratio = (forward + backward) / peer
        lines.append(f"{name:<24}{forward:>12.1f}{backward:>13.1f}{ratio:>10.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = ("attention", "attention-captures", "selective_scan", "hmm_filter")
    parser.add_argument("--ops", nargs="*", default=[], choices=names)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
    times = measure(find_device(), options.layers, options.repeats, options.ops)
    print(table(times), flush=True)
    os._exit(0)  # torch's threads for the device's backward pass would still ask for Python


if __name__ == "__main__":
    main()
