"""Streams and events of the emulated device. All work is done at once and in order, whatever the
stream: a missing wait for another stream is not noticed."""

import itertools

import torch

from . import device, graphs

_numbers = itertools.count(1)
_current: dict[int, "Stream"] = {}
_default: dict[int, "Stream"] = {}


class Event:
    """All have happened, and no time has passed."""

    def __init__(self, enable_timing=False, **options):
        pass

    def record(self, stream=None):
        pass

    def wait(self, stream=None):
        pass

    def query(self):
        graphs.refuse_while_capturing()
        return True

    def synchronize(self):
        graphs.refuse_while_capturing()

    def elapsed_time(self, end):
        return 0.0


class Stream:
    def __init__(self, device=None, priority=0, **options):
        self.device = torch.device("cuda", _index(device))
        self.priority = priority
        self.cuda_stream = self.stream_id = next(_numbers)

    @property
    def device_index(self) -> int:
        return self.device.index

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, stream):
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self):
        graphs.refuse_while_capturing()
        return True

    def synchronize(self):
        graphs.refuse_while_capturing()


def _index(place) -> int:
    if isinstance(place, int):
        return place
    index = None if place is None else torch.device(place).index
    return device.load().emulated_device() if index is None else index


def default_stream(place=None) -> Stream:
    index = _index(place)
    if index not in _default:
        _default[index] = Stream(index)
        _default[index].cuda_stream = 0
    return _default[index]


def current_stream(place=None) -> Stream:
    return _current.get(_index(place)) or default_stream(place)


def set_stream(stream: Stream) -> None:
    if stream is None:
        return
    _current[stream.device_index] = stream
    device.load().emulated_set_device(stream.device_index)
