"""Weights and states of a run: files of tensors with a checksum, read without running code."""

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bwt.runs.directory import RunDirectory
from bwt.runs.files import RunError, reason_of, write_atomically

CHECKSUM = "sha256"  # entry of the metadata of a file of tensors


def save(
    run: RunDirectory, step: int, weights: dict[str, Tensor], state: dict[str, Tensor]
) -> None:
    """The weights of a step, and what a resume from it needs in place of what one needed before."""
    metadata = {"step": str(step)}
    older = run.resumable_steps()
    write_tensors(run.weights_path(step), weights, metadata)
    write_tensors(run.state_path(step), state, metadata)
    for other in older:
        if other != step:
            run.state_path(other).unlink()


def load_weights(
    run: RunDirectory, step: int | None = None, device: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """Of a step, by default the last one."""
    steps = run.steps()
    if not steps:
        raise RunError(f"{run.path} has no checkpoint yet")
    if step is not None and step not in steps:
        raise RunError(f"{run.path} has no checkpoint of step {step}; it has {steps}")
    return read_tensors(run.weights_path(steps[-1] if step is None else step), device)


def load_state(run: RunDirectory) -> tuple[int, dict[str, Tensor]]:
    """The last step a resume can start from, and its state."""
    steps = run.resumable_steps()
    if not steps:
        raise RunError(f"{run.path} has no state to resume from")
    return steps[-1], read_tensors(run.state_path(steps[-1]))


def fill(run: RunDirectory, model: nn.Module, weights: dict[str, Tensor]) -> None:
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        fault = str(error).splitlines()[-1].strip()
        raise RunError(f"the weights of {run.path} do not fit its config: {fault}") from error


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
        raise RunError(f"{path} is corrupt or truncated: {reason_of(error)}") from error
    if wanted is not None and wanted != checksum(tensors):
        raise RunError(f"{path} is corrupt or truncated: its checksum is not that of its contents")
    return {name: x.to(device) for name, x in tensors.items()}


def checksum(tensors: dict[str, Tensor]) -> str:
    """Of names, types, shapes and values of tensors on the CPU."""
    digest = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        digest.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
