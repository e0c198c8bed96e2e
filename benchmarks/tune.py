"""Times candidate tiles on this machine's GPU and rewrites the table of kernels/configs.py.

    python benchmarks/tune.py --kernel short_forward --dtype fp16 --head 64 [--write]

Every candidate is first compared with the present entry's results; a wrong one is not timed.
Without --write the entries are printed as they would stand in the table.
"""

import argparse
import itertools
import re
import sys
from pathlib import Path

import torch

CONFIGS = Path(__file__).parent.parent / "kernels/configs.py"
TOKENS = 1 << 16  # positions in flight: enough to fill any GPU
STREAM_KEYS = 1024


def candidates(config):
    """Neighbours of a config: other numbers of queries, warps and stages for the same keys."""
    from bwt.kernels.configs import Config

    tiles = config.tiles
    heads = (1, 2, 4) if tiles["BS"] <= 32 else (1,)
    sizes = itertools.product(heads, (16, 32, 64, 128), (1, 2, 4, 8), (1, 2, 3))
    for pack, queries, warps, stages in sizes:
        if "PACK" not in tiles:
            if pack == 1:
                for keys in (32, 64, 128):
                    yield Config({"BT": queries, "BS": keys}, warps, stages)
        elif pack == 1 or queries == tiles["BS"]:
            yield Config({"BT": queries, "BS": tiles["BS"], "PACK": pack}, warps, stages)


def example(mode, head_size, keys):
    """The tensors of one call, forward and backward."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(mode, torch.float32)
    heads = 8
    shape = (max(1, TOKENS // keys // heads), heads, keys, head_size)
    q, k, v, grad_out = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4))
    return q, k, v, grad_out


def make_call(kernel, mode, tensors):
    """A call that runs `kernel` with what is in the table, and returns its results."""
    from bwt.kernels.attention import attention_backward, attention_forward

    q, k, v, grad_out = tensors
    options = {"causal": True, "scale": None, "precision": "tf32" if mode == "tf32" else "ieee"}

    def forward():
        return attention_forward(q, k, v, capture_weights=True, capture_entropy=True, **options)

    if kernel in ("short_forward", "stream_forward", "stream_weights"):
        return forward
    out, lse, _, entropy = forward()
    incoming = (grad_out, None, torch.ones_like(lse), None)
    return lambda: attention_backward(*incoming, q, k, v, out, lse, entropy, **options)


def agree(found, expected) -> bool:
    return all(
        a is None or torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2e-2)
        for a, b in zip(found, expected, strict=True)
    )


def tune_entry(key, arch, report):
    """The fastest configs of an entry, in the order of its tiles."""
    from bwt.kernels.configs import TABLE, lookup
    from triton.testing import do_bench

    op, kernel, mode, head_size, _ = key
    present = lookup(op, kernel, mode, head_size, arch)
    place = (op, kernel, mode, head_size, arch)
    chosen = []
    for i, config in enumerate(present):
        keys = config.tiles["BS"] if "PACK" in config.tiles else STREAM_KEYS
        tensors = example(mode, head_size, keys)
        TABLE[place] = present
        call = make_call(kernel, mode, tensors)
        expected = call()
        timed = {0: (do_bench(call, return_mode="median"), config)}
        for number, candidate in enumerate(candidates(config), 1):
            TABLE[place] = (*present[:i], candidate, *present[i + 1 :])
            try:
                if agree(call(), expected):
                    timed[number] = (do_bench(call, return_mode="median"), candidate)
            except Exception as error:  # too much shared memory, or no such tile on this GPU
                report(f"  {candidate}: {type(error).__name__}")
        best = min(timed.values(), key=lambda pair: pair[0])
        report(f"{kernel} {mode} D{head_size} S{keys}: {timed[0][0]:.4f} -> {best[0]:.4f} ms")
        chosen.append(best[1])
    TABLE[place] = tuple(chosen)
    return place, tuple(chosen)


def format_config(config) -> str:
    tiles = (f", {name}={size}" for name, size in config.tiles.items())
    return f"C({config.warps}, {config.stages}{''.join(tiles)})"


def format_table(table) -> str:
    """The entries as they stand in kernels/configs.py."""
    lines = []
    for key, configs in table.items():
        name = "(" + ", ".join(f'"{k}"' if isinstance(k, str) else str(k) for k in key) + ")"
        if len(configs) < 2:
            inside = "".join(f"{format_config(config)}," for config in configs)
            lines.append(f"    {name}: ({inside}),")
        else:
            lines.append(f"    {name}: (")
            lines += [f"        {format_config(config)}," for config in configs]
            lines.append("    ),")
    return "\n".join(lines) + "\n"


def replace_table(source: str, table) -> str:
    """The text of kernels/configs.py with another table in it."""
    pattern = re.compile(r"(?<=^TABLE: Table = \{\n).*?(?=^\}\n)", re.DOTALL | re.MULTILINE)
    replaced, count = pattern.subn(lambda _: format_table(table), source)
    if count != 1:
        raise ValueError("kernels/configs.py has no table of the expected form")
    return replaced


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", choices=["attention"], default="attention")
    parser.add_argument("--kernel", nargs="+", help="as in the table; all if not given")
    parser.add_argument("--dtype", nargs="+", choices=["fp16", "tf32", "fp32"])
    parser.add_argument("--head", nargs="+", type=int)
    parser.add_argument("--write", action="store_true", help="rewrite kernels/configs.py")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("tune.py needs a GPU: it times kernels, and this machine has no CUDA device")
        return 2
    from bwt.kernels.configs import TABLE, architecture

    arch = architecture(torch.device("cuda"))
    wanted = [
        key
        for key in {(*key[:4], "any"): None for key in TABLE}
        if key[0] == options.op
        and (options.kernel is None or key[1] in options.kernel)
        and (options.dtype is None or key[2] in options.dtype)
        and (options.head is None or key[3] in options.head)
    ]
    found = dict(tune_entry(key, arch, lambda text: print(text, flush=True)) for key in wanted)
    print(format_table(found), end="")
    if options.write:
        CONFIGS.write_text(replace_table(CONFIGS.read_text(), TABLE | found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
