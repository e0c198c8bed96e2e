"""`bwt kernels`"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bwt
from bwt.kernels import roofline
from bwt.kernels.gpus import GPUS
from bwt.ops import _dispatch, _library
from bwt.runs.files import read_json

ROOT = Path(bwt.__file__).parents[1]


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("op", metavar="OP", nargs="*", help="of these ops (default: all)")
    text = "where `python -m bwt.kernels.aot --out DIR` has written: says what it has compiled"
    parser.add_argument("--aot", metavar="DIR", help=text)
    roofline = parser.add_argument_group("how fast they should be (predicted, no GPU was used)")
    text = (
        "for each kernel: bytes against the ideal, operations, predicted time, and what limits it"
    )
    roofline.add_argument("--roofline", action="store_true", help=text)
    text = f"only on this one: {', '.join(GPUS)}; may be given again (default: all)"
    roofline.add_argument("--gpu", action="append", type=_gpu, metavar="NAME", help=text)


def _gpu(name: str) -> str:
    """The one that a name ends with, as "4090" does."""
    found = [gpu for gpu in GPUS if name and gpu.lower().endswith(name.lower())]
    if not found:
        raise argparse.ArgumentTypeError(f"no GPU {name!r}; choose from {', '.join(GPUS)}")
    return found[0]


def run(arguments: argparse.Namespace) -> None:
    if arguments.roofline:
        return predict(arguments)
    if arguments.gpu:
        raise ValueError("kernels: --gpu needs --roofline")
    rows = collect(Path(arguments.aot) if arguments.aot else None)
    known = sorted({row["op"] for row in rows})
    for op in arguments.op:
        if op not in known:
            raise ValueError(f"kernels: no op {op!r}; choose from {', '.join(known)}")
    rows = [row for row in rows if not arguments.op or row["op"] in arguments.op]
    print(json.dumps(rows) if arguments.json else render(rows))


def predict(arguments: argparse.Namespace) -> None:
    known = sorted({work.op for work in roofline.counted()})
    for op in arguments.op:
        if op not in known:
            raise ValueError(
                f"kernels: no kernel of {op!r} was counted; choose from {', '.join(known)}"
            )
    gpus = arguments.gpu or list(GPUS)
    rows = [row for gpu in gpus for row in roofline.rows(gpu, arguments.op)]
    print(json.dumps(rows) if arguments.json else roofline.render(rows))


def collect(compiled: Path | None = None) -> list[dict[str, Any]]:
    """One row for each kernel of each backend of each op."""
    records = read_json(compiled / "resources.json") if compiled else []
    done = {(record["name"], record["arch"]) for record in records}
    rows = []
    for op in sorted(_dispatch.BACKENDS):
        for backend in _dispatch.BACKENDS[op]:
            kernels = {"triton": _triton, "cuda": _cuda}.get(backend, _whole)
            common = {"op": op, "backend": backend, "not_usable": _dispatch.status(backend)}
            rows += [common | row for row in kernels(op, backend, done)]
    return rows


def _whole(op: str, backend: str, done: set) -> list[dict[str, Any]]:
    """A backend whose op is one function."""
    place = {
        "reference": f"bwt/reference/{op}.py",
        "native": f"csrc/cpu/{op}/{op}.cpp",
        "torch": f"bwt/ops/_{op}_torch.py",
    }[backend]
    if not (ROOT / place).exists() and (ROOT / f"bwt/ops/{op}.py").exists():
        place = f"bwt/ops/{op}.py"  # made of other ops there
    native = backend == "native" and _dispatch.status(backend) is None
    return [_row(op, place, 1, [], [f"CPU ({_simd()})"] if native else [])]


def _triton(op: str, backend: str, done: set) -> list[dict[str, Any]]:
    """Every kernel the ahead-of-time compiler knows of; where there is no Triton, as on a Mac, only
    where they are."""
    if _library.triton_fault:
        own = (Path(roofline.__file__).parent / op).exists()  # or made of other ops
        return [_row(op, f"kernels/{op}" if own else f"bwt/ops/{op}.py", 1, [], [])]
    from bwt.kernels import aot
    from bwt.kernels.configs import ARCHITECTURES

    if op not in aot.ops():  # made of other ops
        return [_row(op, f"bwt/ops/{op}.py", 1, [], [])]
    forms: dict[str, Counter] = defaultdict(Counter)
    compiled: dict[str, Counter] = defaultdict(Counter)
    files = {}
    for arch in ARCHITECTURES:
        for form, launch in aot.specialisations(op, arch).items():
            forms[launch.name][arch] += 1
            compiled[launch.name][arch] += (form, arch) in done
            files[launch.name] = launch.kernel.fn.__module__.removeprefix("bwt.").replace(".", "/")
    return [
        _row(
            name,
            f"{files[name]}.py",
            max(count.values()),
            list(count),
            [f"{arch} ({n} of {count[arch]})" for arch, n in compiled[name].items() if n],
        )
        for name, count in sorted(forms.items())
    ]


def _cuda(op: str, backend: str, done: set) -> list[dict[str, Any]]:
    """Kernels of csrc/cuda, which nvcc compiles when the package is built."""
    built = _cuda_targets() if _dispatch.status(backend) is None else []
    return [
        _row(name, f"csrc/cuda/{op}/{path.name}", 1, ["sm_80", "sm_90", "sm_100"], built)
        for path in sorted((ROOT / "csrc/cuda" / op).glob("*.cu*"))
        for name in re.findall(r"__global__[^;{]*?\b(\w+_kernel)\s*\(", path.read_text())
    ]


def _cuda_targets() -> list[str]:
    from bwt import _C_cuda

    return _C_cuda.targets.split(",")


def _simd() -> str:
    from bwt import _C

    return _C.simd()


def _row(
    name: str, file: str, configurations: int, targets: list[str], compiled: list[str]
) -> dict[str, Any]:
    return {
        "kernel": name,
        "file": file,
        "configurations": configurations,
        "targets": targets,
        "compiled_for": compiled,
    }


def render(rows: list[dict[str, Any]]) -> str:
    sizes = {name: max(len(row[name]) for row in rows) + 2 for name in ("kernel", "file")}
    width = max(len(", ".join(row["targets"])) for row in rows)

    def line(
        backend: str, kernel: str, file: str, forms: int | str, targets: str, compiled: str
    ) -> str:
        text = f"  {backend:<11}{kernel:<{sizes['kernel']}}{file:<{sizes['file']}}"
        return f"{text}{forms:>5}  {targets:<{width}}  {compiled}".rstrip()

    lines = [line("backend", "kernel", "file", "forms", "targets", "compiled for")]
    for op in dict.fromkeys(row["op"] for row in rows):
        lines += ["", op]
        for row in (row for row in rows if row["op"] == op):
            targets, compiled = (", ".join(row[x]) or "-" for x in ("targets", "compiled_for"))
            backend, kernel, file = row["backend"], row["kernel"], row["file"]
            lines.append(line(backend, kernel, file, row["configurations"], targets, compiled))
    return "\n".join(lines)
