"""The opcode table.

A handler binds one instruction to a machine: it looks up operands once and returns the function
that executes the instruction for the lanes of a mask (None stands for all lanes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .errors import PTXError

if TYPE_CHECKING:
    from .machine import Machine
    from .program import Instruction

Runner = Callable[["np.ndarray | None"], None]
Handler = Callable[["Machine", "Instruction"], Runner]
HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def bind(machine: Machine, instruction: Instruction) -> Runner:
    handler = HANDLERS.get(instruction.name)
    if handler is None:
        raise PTXError(f"opcode {instruction.name} is not implemented")
    return handler(machine, instruction)
