"""Ctrl-C and SIGTERM: how a run is asked to stop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def stop_signals(handler: Handler) -> Iterator[dict[int, Any]]:
    """Ctrl-C and SIGTERM go to `handler`; yields what they went to before, by number."""
    before: dict[int, Any] = {}  # handlers, and numbers that stand for some
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handler)
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        pass
    try:
        yield before
    finally:
        for replaced, earlier in before.items():
            signal.signal(replaced, earlier)


@contextmanager
def catch_signals(caught: list[int]) -> Iterator[None]:
    """Ctrl-C and SIGTERM are noted; the loop stops after its step. A second one stops at once."""

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    with stop_signals(note) as before:
        yield
