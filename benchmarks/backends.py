"""The backend that ops take by default, for a while."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "BWT_BACKEND"


@contextmanager
def using(backend: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = backend
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before
