"""Which preset is taken when none is named."""

import torch


def default_preset(device: str = "auto") -> str:
    return "paper" if device != "cpu" and torch.cuda.is_available() else "quick"


def why_preset(given: str | None, device: str = "auto") -> str:
    """The preset that is taken, and why."""
    if given:
        return f"preset {given}, as asked for"
    if default_preset(device) == "paper":
        return "preset paper, the default with a GPU (--preset quick takes minutes)"
    return "preset quick, the default without a GPU"
