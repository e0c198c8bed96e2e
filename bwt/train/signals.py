"""Ctrl-C and SIGTERM: how a run is asked to stop."""

import signal
from contextlib import contextmanager


@contextmanager
def stop_signals(handler):
    """Ctrl-C and SIGTERM go to `handler`; yields what they went to before, by number."""
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handler)
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        pass
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def catch_signals(caught: list[int]):
    """Ctrl-C and SIGTERM are noted; the loop stops after its step. A second one stops at once."""

    def note(number, frame) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    with stop_signals(note) as before:
        yield
