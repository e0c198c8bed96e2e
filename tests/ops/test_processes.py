"""Ops in other processes, after this one has called them on several threads."""

import math
from multiprocessing import get_context

import pytest
import torch
from helpers import tolerances
from helpers.in_worker import KEYS, Entropies, entropy, values

from bwt import reference

PATIENCE = 120  # seconds after which a process is taken to hang


@pytest.fixture(autouse=True)
def parallel():
    """A call on two threads first: it starts the pool that a fork would not inherit alive."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.rand(2**20).exp()
    yield entropy(0)
    torch.set_num_threads(before)


def close(found, seed):
    exact = reference.bijection_posterior(KEYS.numpy(), values(seed).numpy(), 6).entropy
    bound = tolerances.rounding(torch.float32, math.log2(6))
    return (found.double() - torch.from_numpy(exact)).abs().max() <= bound


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_of_its_own(method):
    with get_context(method).Pool(1) as pool:
        found = pool.apply_async(entropy, (3,)).get(timeout=PATIENCE)
    assert close(found, 3)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_data_loader(method):
    loader = torch.utils.data.DataLoader(
        Entropies(),
        batch_size=None,
        num_workers=1,
        timeout=PATIENCE,
        multiprocessing_context=method,
    )
    found = list(loader)
    assert len(found) == 4 and all(close(x, seed) for seed, x in enumerate(found))
