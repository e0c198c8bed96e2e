"""The run directory: what a run leaves behind, written atomically, read without running code.

config.json  environment.json  metrics.jsonl  evaluation.json
checkpoints/step_00001000.safetensors         the weights that are evaluated
checkpoints/step_00001000.state.safetensors   what a resume needs; beside the last one only
"""

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


class RunError(ValueError):
    """Something is wrong with the files of a run; the message says what, in one line."""


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a file beside `path`, which then takes its name: never half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(name))
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors = {name: x.detach().contiguous() for name, x in tensors.items()}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


def read_tensors(path: Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist") from error
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} is corrupt or truncated: {error}") from error


class RunDirectory:
    def __init__(self, path: str | Path):
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path) -> "RunDirectory":
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise RunError(f"{run.path} exists already; resume it with --resume or choose another")
        run.checkpoints.mkdir(parents=True)
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        run = cls(path)
        if not (run.path / "config.json").is_file():
            raise RunError(f"{run.path} is no run directory: it has no config.json")
        return run

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

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
        config = read_json(self.path / "config.json")
        if not isinstance(config, dict):
            raise RunError(f"{self.path / 'config.json'} does not hold a configuration")
        return config

    def append_metrics(self, row: dict[str, Any]) -> None:
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        rows = []
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break  # a line cut off by a crash, and nothing follows one
        return rows

    def forget_after(self, step: int) -> None:
        """Drops what was written after `step`, so that a resumed run repeats it."""
        rows = [row for row in self.read_metrics() if row["step"] <= step]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_atomically(self.path / "metrics.jsonl", lambda file: file.write_text(text))
        for later in self.steps():
            if later > step:
                self.weights_path(later).unlink()
