"""The run directory: what a run leaves behind, written atomically, read without running code.

config.json  environment.json  metrics.jsonl  evaluation.json
diverged.json                                 when and how, if training came to nothing
checkpoints/step_00001000.safetensors         the weights that are evaluated
checkpoints/step_00001000.state.safetensors   what a resume needs; beside the last one only
.lock                                         held by the process that trains
"""

import contextlib
import hashlib
import json
import math
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bwt.locks import locked, try_lock

CHECKSUM = "sha256"  # entry of the metadata of a file of tensors
TEMPORARY = re.compile(r"\..+\.(json|jsonl|safetensors|svg|html)\.[a-z0-9_]{8}")


class RunError(ValueError):
    """Something is wrong with the files of a run; the message says what, in one line."""


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a file beside `path`, which then takes its name: never half a file.

    Raises:
        OSError: it cannot be written; the message names it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = _temporary(path)
        try:
            write(Path(name))
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        finally:
            os.close(handle)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{path} cannot be written: {_reason(error)}") from error


def _temporary(path: Path) -> tuple[int, str]:
    """Locked while its writer lives, so that those of the dead can be told (see `clean`)."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        if try_lock(handle) and os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)  # a cleaner came between the two


def clean(folder: Path) -> None:
    """Removes temporary files whose writers were killed."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            # What is not ours to open or remove stays.
            with contextlib.suppress(OSError), open(path) as file:
                if try_lock(file):
                    path.unlink()


def _reason(error: Exception) -> str:
    """In one line, without the name of the temporary file."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def strict_json(value: Any, **layout: Any) -> str:
    """A number that is not finite becomes null."""
    return json.dumps(_finite(value), allow_nan=False, **layout)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    text = strict_json(value, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def _loads(text: str) -> Any:
    """NaN and Infinity, which are not JSON, are read as null."""
    return json.loads(text, parse_constant=lambda name: None)


def read_json(path: Path) -> Any:
    try:
        return _loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {_reason(error)}") from error


def read_object(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object in a file; the default, if there is one, where there is no file."""
    if default is not None and not path.exists():
        return default
    found = read_json(path)
    if not isinstance(found, dict):
        raise RunError(f"{path} does not hold a JSON object; remove it, or make it again")
    return found


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    metadata = {**metadata, CHECKSUM: checksum(tensors)}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


def read_tensors(path: Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """
    Raises:
        RunError: the file is damaged. One of before, without a checksum, is taken on trust.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            wanted = (file.metadata() or {}).get(CHECKSUM)
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist") from error
    except Exception as error:  # a damaged header fails in as many ways as there are
        raise RunError(f"{path} is corrupt or truncated: {_reason(error)}") from error
    if wanted is not None and wanted != checksum(tensors):
        raise RunError(f"{path} is corrupt or truncated: its checksum is not that of its contents")
    return {name: x.to(device) for name, x in tensors.items()}


def checksum(tensors: dict[str, Tensor]) -> str:
    """Of names, types, shapes and values of tensors on the CPU."""
    found = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        found.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        found.update(x.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


class RunDirectory:
    def __init__(self, path: str | Path):
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path) -> "RunDirectory":
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise RunError(f"{run.path} exists already; resume it with --resume or choose another")
        try:
            run.checkpoints.mkdir(parents=True)
        except FileExistsError as error:
            raise RunError(f"{run.path} was begun by another process just now") from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        run = cls(path)
        if not (run.path / "config.json").is_file():
            raise RunError(f"{run.path} is not a run directory: it has no config.json")
        for folder in (run.path, run.checkpoints, run.figures):
            clean(folder)
        return run

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For the one process that trains this run and writes its files.

        Raises:
            RunError: another one does.
        """
        ours = f"process {os.getpid()} on {socket.gethostname()}"
        with locked(self.path / ".lock", ours) as other:
            if other is not None:
                raise RunError(f"{self.path} is being trained by {other}; wait for it or stop it")
            yield

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def divergence(self) -> dict[str, Any] | None:
        """What diverged.json tells, if there is one: the step, and the message."""
        path = self.path / "diverged.json"
        if not path.exists():
            return None
        found = read_object(path)
        if not isinstance(found.get("step"), int) or not isinstance(found.get("message"), str):
            raise RunError(f"{path} does not say at which step the run diverged, and how")
        return found

    def divergence_in_words(self) -> str:
        """What follows the name of a run that has diverged, without a full stop."""
        step = self.last_step()
        left = "it has no checkpoint" if step is None else f"its last checkpoint is of step {step}"
        found = self.divergence
        return f"diverged at step {found['step']} ({found['message']}); {left}"

    def last_step(self) -> int | None:
        """The last one that has weights."""
        return max(self.steps(), default=None)

    def weights_path(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}.safetensors"

    def state_path(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}.state.safetensors"

    def steps(self) -> list[int]:
        """Steps that have weights, in order."""
        return self._steps(r"step_(\d+)\.safetensors")

    def _steps(self, pattern: str) -> list[int]:
        names = (path.name for path in self.checkpoints.glob("*"))
        return sorted(int(m[1]) for name in names if (m := re.fullmatch(pattern, name)))

    def save(self, step: int, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        metadata = {"step": str(step)}
        older = self._steps(r"step_(\d+)\.state\.safetensors")
        write_tensors(self.weights_path(step), weights, metadata)
        write_tensors(self.state_path(step), state, metadata)
        for other in older:
            if other != step:
                self.state_path(other).unlink()

    def load_weights(
        self, step: int | None = None, device: str | torch.device = "cpu"
    ) -> dict[str, Tensor]:
        """Of a step, by default the last one."""
        steps = self.steps()
        if not steps:
            raise RunError(f"{self.path} has no checkpoint yet")
        if step is not None and step not in steps:
            raise RunError(f"{self.path} has no checkpoint of step {step}; it has {steps}")
        return read_tensors(self.weights_path(steps[-1] if step is None else step), device)

    def load_state(self) -> tuple[int, dict[str, Tensor]]:
        """The last step a resume can start from, and its state."""
        steps = self._steps(r"step_(\d+)\.state\.safetensors")
        if not steps:
            raise RunError(f"{self.path} has no state to resume from")
        return steps[-1], read_tensors(self.state_path(steps[-1]))

    def fill(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            fault = str(error).splitlines()[-1].strip()
            raise RunError(f"the weights of {self.path} do not fit its config: {fault}") from error

    def read_config(self) -> dict[str, Any]:
        return read_object(self.path / "config.json")

    def append_metrics(self, row: dict[str, Any]) -> None:
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "a") as file:
                file.write(strict_json(row) + "\n")
        except OSError as error:
            raise OSError(f"{path} cannot be written: {_reason(error)}") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """Rows in order; lines that are none, as one cut off by a crash, are left out."""
        return self._read_metrics()[0]

    def _read_metrics(self) -> tuple[list[dict[str, Any]], int]:
        """(rows, number of lines left out)"""
        path = self.path / "metrics.jsonl"
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise RunError(f"{path} cannot be read: {_reason(error)}") from error
        lines = [line for line in lines if line]
        found = [_row(line) for line in lines]
        rows = [row for row in found if row is not None]
        return rows, len(lines) - len(rows)

    def forget_after(self, step: int) -> int:
        """Drops what was written after `step`, so that a resumed run repeats it. Returns how many
        lines of metrics could not be read and went as well."""
        rows, lost = self._read_metrics()
        text = "".join(strict_json(row) + "\n" for row in rows if row["step"] <= step)
        write_atomically(self.path / "metrics.jsonl", lambda file: file.write_text(text))
        for later in self.steps():
            if later > step:
                self.weights_path(later).unlink()
        return lost


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = _loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None
