"""Compiles every entry of the table ahead of time, without a GPU, and reports what it uses.

    python -m bwt.kernels.aot --arch 80 90 100 gfx942 --op attention --match '*.D64.*' --out DIR
    python -m bwt.kernels.aot --summary       one line for each architecture, and a verdict
    python -m bwt.kernels.aot --summary --hardest       of each entry the form that does most

Every folder kernels/<op>/ takes part: its function `specialisations(arch)` yields (name, Launch) of
every form that is to be compiled; of those whose names differ in the last part alone, a later one
does more. TRITON_INTERPRET must be unset: an interpreting process cannot compile.
"""

import argparse
import fnmatch
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from .configs import ARCHITECTURES, FP_FUSION, SHARED_MEMORY, Launch

TENSOR_CORE = re.compile(r"(HMMA|HGMMA|UTC\w*MMA|IMMA|QGMMA)\b")
POINTERS = {
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
    "int32": "*i32",
    "int64": "*i64",
    "uint8": "*u8",
    "bool": "*i1",
}
# Some of the forms that ask for all captures at once lack registers even with all 255. Bytes of
# stack, on the architecture that needs most; in bf16 as in fp16, whose entries serve it.
KNOWN_SPILLS = {
    "attention_short_backward.fp16.D32.S32.asked": 24,
    "attention_short_backward.fp16.D32.S64.asked": 48,
    "attention_short_backward.fp16.D64.S16.asked": 16,
    "attention_short_backward.tf32.D16.S32.asked": 16,
    "attention_short_backward.tf32.D32.S32.asked": 40,
    "attention_short_backward.tf32.D32.S64.asked": 64,
    "attention_short_forward.fp16.D64.S64.asked": 48,
    "attention_stream_forward.fp16.D128.S512.asked": 192,
    "attention_stream_forward.tf32.D64.S512.asked": 24,
    "attention_stream_keys.fp16.D128.S512.asked": 8,
    "attention_stream_keys.fp16.D32.S512.asked": 8,
    "attention_stream_keys.tf32.D16.S512.asked": 8,
    "attention_stream_keys.tf32.D32.S512.asked": 128,
    "attention_stream_queries.fp16.D128.S512.asked": 24,
    "attention_stream_queries.fp16.D32.S512.asked": 56,
    "attention_stream_queries.fp16.D64.S512.asked": 24,
    "attention_stream_queries.tf32.D16.S512.asked": 48,
    "attention_stream_queries.tf32.D32.S512.asked": 72,
}
COLUMNS = ("registers", "stack", "spills", "shared", "tensor_core", "wide_stores", "stores")


def ops() -> list[str]:
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))


@cache
def specialisations(op: str, arch: str) -> dict[str, Launch]:
    return dict(importlib.import_module(f".{op}", __package__).specialisations(arch))


def signature(launch: Launch) -> tuple[dict[str, str], dict, dict]:
    """Types, constants and attributes as Triton's own launcher would choose them: None and 1
    become constants, multiples of 16 are declared so."""
    types, attributes = {}, {}
    constants: dict[str, object] = dict(launch.config.tiles)
    for i, parameter in enumerate(launch.kernel.params):
        value = launch.arguments.get(parameter.name)
        integer = isinstance(value, int) and not isinstance(value, bool)
        if parameter.is_constexpr or value is None or (integer and value == 1):
            types[parameter.name] = "constexpr"
            constants.setdefault(parameter.name, value)
        elif integer:
            types[parameter.name] = "i32" if abs(value) < 2**31 else "i64"
        elif isinstance(value, float):
            types[parameter.name] = "fp32"
        else:
            types[parameter.name] = POINTERS[str(value.dtype).removeprefix("torch.")]
        kind = types[parameter.name]
        aligned = kind[0] == "i" and isinstance(value, int) and value % 16 == 0
        if aligned or kind.startswith("*"):
            attributes[(i,)] = [["tt.divisibility", 16]]
    return types, constants, attributes


def compile_launch(launch: Launch, arch: str):
    """Triton's compiled kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    nvidia = arch.startswith("sm_")
    target = ("cuda", int(arch.removeprefix("sm_")), 32) if nvidia else ("hip", arch, 64)
    source = ASTSource(launch.kernel, *signature(launch))
    return triton.compile(source, target=GPUTarget(*target), options=launch.config.options)


def hardest(forms: dict[str, Launch]) -> list[str]:
    """Of each entry, with each limit of registers, the form that does most. The entries of fp16
    serve bf16, too."""
    last = {
        (name.rpartition(".")[0], launch.config.registers): name for name, launch in forms.items()
    }
    return [name for name in last.values() if ".bf16." not in name]


def build(name: str, launch: Launch, arch: str, out: str | None, brief: bool = False) -> dict:
    """Compile, write the files, return what is known about them (brief: for a verdict)."""
    compiled = compile_launch(launch, arch)
    types, constants, _ = signature(launch)
    record = {
        "name": name,
        "arch": arch,
        "shared": compiled.metadata.shared,
        "num_warps": launch.config.warps,
        "num_stages": launch.config.stages,
        "fp_fusion": FP_FUSION,
        "arguments": {key: kind for key, kind in types.items() if kind != "constexpr"},
        "constants": constants,
    }
    forms = ("ptx", "cubin") if arch.startswith("sm_") else ("amdgcn", "hsaco")
    text, binary = (compiled.asm[form] for form in forms)
    if out is not None:
        folder = Path(out, arch)
        folder.mkdir(parents=True, exist_ok=True)
        for form, content in zip(forms, (text.encode(), binary), strict=True):
            record[form] = str(folder / f"{name}.{form}")
            Path(record[form]).write_bytes(content)
    if arch.startswith("sm_"):
        return record | nvidia_resources(binary, brief)
    return record | amd_resources(text)


def build_by_name(op: str, name: str, arch: str, out: str | None, brief: bool) -> dict:
    """For worker processes: launches themselves cannot be sent to them, nor all exceptions back."""
    try:
        return build(name, specialisations(op, arch)[name], arch, out, brief)
    except Exception as error:  # of Triton, LLVM or ptxas: the other kernels are still of interest
        lines = str(error).strip().splitlines() or [""]
        return {"name": name, "arch": arch, "failure": f"{type(error).__name__}: {lines[-1]}"}


def nvidia_resources(cubin: bytes, brief: bool = False) -> dict:
    """What ptxas made of it. LOCAL stays 0 in kernels that spill, so the stack and the opcodes of
    local memory are looked at instead; briefly, without a stack nothing is disassembled."""
    usage = _cuobjdump("--dump-resource-usage", cubin)
    used = dict(re.findall(r"\b(REG|STACK|SHARED):(\d+)", usage))
    if brief and used["STACK"] == "0":
        return {"registers": int(used["REG"]), "stack": 0, "spills": 0}
    opcodes: dict[str, int] = {}
    for opcode in re.findall(
        r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", _cuobjdump("-sass", cubin)
    ):
        opcodes[opcode] = opcodes.get(opcode, 0) + 1

    def count(pattern):
        return sum(n for opcode, n in opcodes.items() if re.match(pattern, opcode))

    return {
        "registers": int(used["REG"]),
        "instructions": sum(opcodes.values()) - opcodes.get("NOP", 0),
        "stack": int(used["STACK"]),
        "spills": count(r"(STL|LDL)\b"),
        "tensor_core": count(TENSOR_CORE),
        "tensor_core_kinds": sorted({o.split(".")[0] for o in opcodes if TENSOR_CORE.match(o)}),
        "stores": count(r"STG\b"),
        "wide_stores": count(r"STG\b.*\.128"),
        "wide_loads": count(r"(LDG|LDGSTS)\b.*\.128"),
    }


def amd_resources(assembly: str) -> dict:
    def field(name):
        return int(re.search(rf"\.{name}:\s+(\d+)", assembly).group(1))

    return {
        "registers": field("vgpr_count"),
        "stack": field("private_segment_fixed_size"),
        "spills": field("vgpr_spill_count"),
        "tensor_core": len(re.findall(r"\bv_mfma", assembly)),
        "tensor_core_kinds": ["MFMA"] if "v_mfma" in assembly else [],
        "stores": len(re.findall(r"\b(?:global|buffer)_store", assembly)),
        "wide_stores": len(re.findall(r"\b(?:global|buffer)_store_dwordx4", assembly)),
        "wide_loads": len(re.findall(r"\b(?:global|buffer)_load_dwordx4", assembly)),
    }


def _cuobjdump(option: str, cubin: bytes) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    # nvdisasm lies beside it and is found through the path.
    path = os.pathsep.join((str(tool.parent), os.environ.get("PATH", "")))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [tool, option, file.name],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PATH": path},
        )
    return done.stdout


def show(record: dict, header: bool) -> None:
    if header:
        print(f"{'name':48}{'arch':>7}", *(f"{column:>11}" for column in COLUMNS))
    values = (f"{record[column]:>11}" for column in COLUMNS if column in record)
    print(f"{record['name']:48}{record['arch']:>7}", *values, record.get("failure", ""), flush=True)


def show_progress(record: dict, done: int, wanted: int) -> None:
    """Each fault at once, and a sign of life now and then."""
    if why := fault(record):
        print(f"{record['arch']} {record['name']}: {why}", file=sys.stderr, flush=True)
    if done % 50 == 0 or done in (1, wanted):
        print(f"{done} of {wanted} kernels ({record['arch']})", file=sys.stderr, flush=True)


def fault(record: dict) -> str | None:
    """Why a kernel must not be shipped, or None."""
    limit = SHARED_MEMORY[record["arch"]]
    if "failure" in record:
        return record["failure"]
    name = record["name"].replace(".bf16.", ".fp16.")
    known = name in KNOWN_SPILLS and record["stack"] <= KNOWN_SPILLS[name]
    if (record["stack"] or record["spills"]) and not known:
        return f"{record['stack']} bytes of stack, {record['spills']} spills"
    if record["shared"] > limit:
        return f"{record['shared']} bytes of shared memory of {limit}"
    return None


def summarise(records: list[dict]) -> str:
    """One line for each architecture, then every kernel with a fault."""
    lines = [
        f"{'arch':8}{'kernels':>9}{'failed':>8}{'registers':>11}{'stack':>8}{'spills':>8}"
        f"{'shared':>9}{'of':>9}{'faults':>8}"
    ]
    for arch in dict.fromkeys(record["arch"] for record in records):
        mine = [record for record in records if record["arch"] == arch]
        built = [record for record in mine if "failure" not in record]
        worst = {
            column: max((record[column] for record in built), default=0)
            for column in ("registers", "stack", "spills", "shared")
        }
        faults = sum(fault(record) is not None for record in mine)
        lines.append(
            f"{arch:8}{len(mine):>9}{len(mine) - len(built):>8}{worst['registers']:>11}"
            f"{worst['stack']:>8}{worst['spills']:>8}{worst['shared']:>9}"
            f"{SHARED_MEMORY[arch]:>9}{faults:>8}"
        )
    judged = [(record, fault(record)) for record in records]
    lines += [f"{record['arch']} {record['name']}: {why}" for record, why in judged if why]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = [arch.removeprefix("sm_") for arch in ARCHITECTURES]
    parser.add_argument("--arch", nargs="+", choices=known, default=known)
    parser.add_argument("--op", nargs="+", choices=ops(), default=ops())
    parser.add_argument("--match", nargs="+", default=["*"], help="patterns of names to compile")
    parser.add_argument("--hardest", action="store_true", help="only the form that does most")
    parser.add_argument("--out", help="directory for ptx, cubin and resources.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document only")
    form.add_argument("--summary", action="store_true", help="print one line per architecture")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        parser.error("TRITON_INTERPRET is set, and an interpreting process cannot compile")

    chosen = hardest if options.hardest else list
    jobs = [
        (op, name, arch, options.out, options.summary)
        for arch in (f"sm_{a}" if a.isdigit() else a for a in options.arch)
        for op in options.op
        for name in chosen(specialisations(op, arch))
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.match)
    ]
    records = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for record in pool.map(build_by_name, *zip(*jobs, strict=True)) if jobs else ():
            records.append(record)
            if options.summary:
                show_progress(record, len(records), len(jobs))
            elif not options.json:
                show(record, header=len(records) == 1)
    document = json.dumps(records)
    if options.out is not None:
        Path(options.out).mkdir(parents=True, exist_ok=True)
        Path(options.out, "resources.json").write_text(document)
    if options.json:
        print(document)
    if options.summary:
        print(summarise(records))
        return int(any(fault(record) for record in records))
    return int(any("failure" in record for record in records))


if __name__ == "__main__":
    sys.exit(main())
