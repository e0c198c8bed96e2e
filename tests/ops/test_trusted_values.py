"""check=False: ops that take values on trust read nothing back from the device, and what they make
of values that did not deserve it."""

import pytest
import torch
from helpers.gpu_host import CUDA, Watch, on_the_device
from torch._subclasses.fake_tensor import DataDependentOutputException

from bwt import ops, tasks

MODULE = "bwt.kernels.hmm_filter"  # read by the fixture `call`
HALVES = torch.tensor([0.5, 0.5])
STAY = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
SEEN = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])


def filter_on_the_device(check):
    y = torch.zeros(2, 3, dtype=torch.int64, device=CUDA)
    parameters = [torch.full(s, 0.5, device=CUDA) for s in [(2,), (2, 2), (2, 2)]]
    lengths = torch.ones(2, dtype=torch.int64, device=CUDA)
    return ops.hmm_filter(y, *parameters, lengths=lengths, check=check).filtered


def posterior_on_the_device(check, noisy):
    ids = torch.zeros(2, 3, dtype=torch.int64, device=CUDA)
    channel = torch.full((4, 4), 0.25, device=CUDA) if noisy else None
    return ops.bijection_posterior(ids, ids, 4, channel=channel, check=check).posterior


@pytest.mark.parametrize(
    "call",
    [
        filter_on_the_device,
        lambda check: posterior_on_the_device(check, noisy=False),
        lambda check: posterior_on_the_device(check, noisy=True),
    ],
    ids=["hmm_filter", "bijection_posterior", "bijection_posterior-noisy"],
)
def test_only_a_checked_call_waits_for_the_device(call):
    with on_the_device():
        with Watch() as watch:
            assert call(check=False).device == CUDA
        assert watch.faults == []
        with Watch() as watch, pytest.raises(DataDependentOutputException):
            call(check=True)
    assert watch.faults == ["aten._local_scalar_dense.default: the host waits for the device"]


def test_hmm_filter_of_trusted_values(call):
    """What the docstring promises of the Triton kernel."""
    bad = torch.tensor([[0, -7, 1], [0, 3, 1], [0, 2, 1]])
    lengths = torch.tensor([3, 3, 9])
    got = call("hmm_filter_forward", bad, HALVES, STAY, SEEN, lengths)
    missing = torch.tensor([[0, -1, 1], [0, 2, 1]])
    want = ops.hmm_filter(missing, HALVES, STAY, SEEN, backend="reference")
    for mine, reference in zip(got, want, strict=True):
        torch.testing.assert_close(mine[[0, 2]], reference, atol=1e-6, rtol=1e-6)
    assert torch.all(got[0][1, 1:] == 0) and got[2][1] == -torch.inf


def test_torch_backend_takes_values_on_trust():
    y, wide = torch.tensor([[0, 1, 2]]), 2 * STAY
    got = ops.hmm_filter(y, HALVES, wide, SEEN, check=False, backend="torch")
    torch.testing.assert_close(got.predicted[0, 1].sum(), torch.tensor(2.0))
    with pytest.raises(ValueError, match="not a distribution"):
        ops.hmm_filter(y, HALVES, wide, SEEN, backend="torch")
    keys, twice = torch.tensor([[0, 1, 2]]), torch.tensor([[1, 1, 0]])
    got = ops.bijection_posterior(keys, twice, 3, check=False, backend="torch")
    assert torch.isneginf(got.log_evidence[0, 1:]).all()
    with pytest.raises(ValueError, match="contradict"):
        ops.bijection_posterior(keys, twice, 3, backend="torch")


def test_on_the_cpu_the_kernels_look_all_the_same():
    with pytest.raises(ValueError, match=r"observations\[0, 1\] is 3"):
        ops.hmm_filter(torch.tensor([[0, 3]]), HALVES, STAY, SEEN, check=False)
    ids = torch.tensor([[0, 4]])
    with pytest.raises(ValueError, match=r"keys\[0, 1\] is 4"):
        ops.bijection_posterior(ids, ids, 4, check=False)


@pytest.mark.parametrize("channel", [None, torch.eye(3)], ids=["noiseless", "zeros"])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_rows_behind_a_contradiction_are_zero(backend, channel):
    """On the CPU as on a GPU."""
    keys, values = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[1, 1, 0, 1]])
    options = {"channel": channel, "backend": backend}
    got = ops.bijection_posterior(keys, values, 3, check=False, **options)
    want = ops.bijection_posterior(keys[:, :1], values[:, :1], 3, **options)
    torch.testing.assert_close(got.posterior[:, :1], want.posterior)
    torch.testing.assert_close(got.posterior[0, 1], torch.tensor([0.5, 0.0, 0.5]))
    assert not got.posterior[:, 2:].any() and not got.entropy[:, 2:].any()
    assert torch.isneginf(got.log_evidence[:, 1:]).all()


def test_a_batch_of_others_is_checked():
    """A task trusts what it has drawn itself, not what it is handed."""
    task = tasks.get("recall", num_pairs=2, num_queries=1, num_keys=4, num_values=4)
    batch = task.sample(3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(task.posterior(batch), batch.posterior)
    batch.tokens[1, 3] = 0
    with pytest.raises(ValueError, match="where values are stored"):
        task.posterior(batch)
