"""What can be tuned: every entry of kernels/configs.py, at the sizes people use.

A subject is one config of one entry. Its works are the calls it serves: each is checked against the
reference (checks.py), and timed as a single launch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch

from bwt.tuning import checks

LENGTHS = (16, 32, 37, 39, 64, 93, 128, 256)  # of attention; 37, 39 and 93 are the paper's
STATES = {4: 3, 8: 5, 16: 16, 32: 20, 64: 64, 128: 128}  # padded -> as people have them
ATTENTION_KERNELS = {
    "forward": ("short_forward", "stream_forward", "stream_weights"),
    "backward": (
        "short_backward",
        "blocks_backward",
        "stream_offset",
        "stream_keys",
        "stream_queries",
    ),
}
# What the presets train with: size of a head, padded states.
QUICK = {"attention": (16, 32, 64), "hmm_filter": (8,), "selective_scan": (16,)}
QUICK_MODES = ("fp16", "fp32")


class Sizes(NamedTuple):
    tokens: int  # positions in flight
    heads: int
    checked: tuple[int, int]  # sequences and heads compared with the reference
    blocked_lengths: tuple[int, ...]  # of attention whose keys exceed a tile
    stream_lengths: tuple[int, ...]  # of attention beyond those
    steps: int  # of hmm_filter
    scan_lengths: tuple[int, ...]
    channels: int  # of selective_scan


FULL = Sizes(1 << 16, 8, (2, 3), (93, 128, 256), (300, 1024), 50, (31, 93), 512)  # fills any GPU


class Key(NamedTuple):
    op: str
    kernel: str
    mode: str
    size: int


class Work(NamedTuple):
    name: str  # T37, S5-T50
    check: Callable[[Callable], Any]  # (call) raises AssertionError where results are wrong
    example: Callable[[str], Any]  # (arch) -> the Launch to time, on tensors without memory


@dataclass(frozen=True)
class Subject:
    key: Key
    index: int  # of the config in the entry
    works: tuple[Work, ...]

    @property
    def name(self) -> str:
        op, kernel, mode, size = self.key
        return f"{op} {kernel} {mode} {size} ({', '.join(work.name for work in self.works)})"

    @property
    def module(self) -> str:
        return f"bwt.kernels.{self.key.op}"


def subjects(keys: list[Key], arch: str, sizes: Sizes = FULL) -> list[Subject]:
    from bwt.kernels.configs import lookup

    found = []
    for key in keys:
        configs = lookup(*key, arch)
        for index, config in enumerate(configs):
            smaller = configs[index - 1] if index else None
            works = WORKS[key.op](key, config, smaller, sizes)
            found.append(Subject(key, index, tuple(works)))
    return found


def keys(quick: bool) -> list[Key]:
    """Of all entries, or of those the presets train with."""
    from bwt.kernels.configs import TABLE

    every = dict.fromkeys(Key(*key[:4]) for key in TABLE)
    if not quick:
        return list(every)
    return [key for key in every if key.size in QUICK[key.op] and key.mode in QUICK_MODES]


def attention_works(key, config, smaller, sizes):
    if "PACK" in config.tiles:
        least = smaller.tiles["BS"] if smaller else 0
        lengths = [n for n in LENGTHS if least < n <= config.tiles["BS"]] or [config.tiles["BS"]]
    elif key.kernel == "blocks_backward":
        lengths = sizes.blocked_lengths
    else:
        # The weights of the longest would not fit into a small memory.
        lengths = sizes.stream_lengths[: 1 if key.kernel == "stream_weights" else None]
    # bf16 is served by the entries of fp16.
    modes = ("fp16", "bf16") if key.mode == "fp16" and torch.cuda.is_available() else (key.mode,)
    for length in lengths:

        def check(call, length=length):
            for mode in modes:
                checks.attention(call, mode, (*sizes.checked, length, key.size))

        shape = {"queries": length, "keys": length, "head_size": key.size}
        shape |= {"batch": max(1, sizes.tokens // length // sizes.heads), "heads": sizes.heads}
        yield Work(f"T{length}", check, partial(_example, key, key.kernel, mode=key.mode, **shape))


def hmm_works(key, config, smaller, sizes):
    states = STATES[key.size]
    path, _, label = key.kernel.rpartition("_")  # no path in "starts" and "ends"
    paths = {"rows": ("rows", "chunks") if key.size <= 16 else ("rows",), "dot": ("dot",)}
    for way in paths.get(path, ("chunks",)):
        own = (way != "dot",) * 3  # parameters that each sequence has for itself
        batch, steps = (1, sizes.tokens) if way == "chunks" else (sizes.tokens // 16, sizes.steps)
        shape = {"batch": batch, "steps": steps, "states": states, "symbols": 5, "path": way}
        example = partial(_example, key, label, mode=key.mode, own=own, lengths=False, **shape)
        checked = (3, min(steps, sizes.steps), states, 5)
        check = partial(_check_hmm, key.mode, way, checked, own)
        yield Work(f"{way}-S{states}-T{steps}", check, example)


def _check_hmm(mode, path, shape, own, call):
    checks.hmm_filter(call, mode, path, shape, own)


def scan_works(key, config, smaller, sizes):
    for length in sizes.scan_lengths:

        def check(call, length=length):
            checks.selective_scan(call, key.mode, (2, length, 5, key.size))

        shape = {"batch": max(1, sizes.tokens // 1024), "steps": length, "states": key.size}
        shape |= {"channels": sizes.channels, "mode": key.mode}
        yield Work(f"L{length}", check, partial(_example, key, key.kernel, **shape))


WORKS = {
    "attention": attention_works,
    "hmm_filter": hmm_works,
    "selective_scan": scan_works,
}


def _example(key: Key, label: str, arch: str, **sizes):
    """One launch of a call, found by the kernel's name."""
    launches = import_module(f"bwt.kernels.{key.op}").example_launches(arch=arch, **sizes)
    return launches[f"{key.op}_{label}"]


def with_memory(launch, device: str):
    """The launch on tensors of its own, filled so that nothing overflows; no sequence of an HMM is
    marked as delicate, which is rare."""
    arguments = {}
    for name, value in launch.arguments.items():
        if isinstance(value, torch.Tensor):
            shape, strides, dtype = value.shape, value.stride(), value.dtype
            real = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            symbols = 1 if name == "delicate" else 4
            value = real.uniform_(0.05, 1.0) if real.is_floating_point() else real.random_(symbols)
        arguments[name] = value
    return launch._replace(arguments=arguments)


LIMITS = {"BT": (16, 128), "BS": (16, 128), "BB": (1, 32), "BE": (4, 128), "PACK": (1, 4)}
LIMITS |= {"CH": (2, 16), "NR": (1, 32)}
WARPS, STAGES = (1, 2, 4, 8, 16), (1, 2, 3)


def neighbours(subject: Subject, config):
    """Configs one step away: a tile twice or half as large, other warps, other stages."""
    short, dot = "PACK" in config.tiles, subject.key.kernel.startswith("dot")
    for tile, size in config.tiles.items():
        low, high = LIMITS.get(tile, (size, size))
        if dot and tile == "BB":
            low = 8
        if tile == "NR":
            high = min(high, subject.key.size)
        if short and tile == "BS":  # decides which calls the entry serves
            continue
        for other in (size // 2, size * 2):
            tiles = config.tiles | {tile: other}
            packed = tiles.get("PACK", 1) > 1
            if low <= other <= high and not (packed and tiles["BT"] != tiles["BS"]):
                yield config._replace(tiles=tiles)
    for choices, field in ((WARPS, "warps"), (STAGES, "stages")):
        place = choices.index(getattr(config, field))
        for other in (place - 1, place + 1):
            if 0 <= other < len(choices):
                yield config._replace(**{field: choices[other]})
