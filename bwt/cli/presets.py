"""Which preset is taken when none is named, and whether a GPU is."""

import torch


def takes_gpu(device: str = "auto") -> bool:
    return device != "cpu" and torch.cuda.is_available()


def default_preset(device: str = "auto") -> str:
    return "paper" if takes_gpu(device) else "quick"


def why_preset(given: str | None, device: str = "auto") -> str:
    """The preset that is taken, and why."""
    if given:
        return f"preset {given}, as asked for"
    if default_preset(device) == "paper":
        return "preset paper, the default with a GPU (--preset quick takes minutes)"
    return "preset quick, the default without a GPU"
