"""The emulated GPU itself: it must notice what a real one would punish or hide."""

import pytest
import torch
import triton
import triton.language as tl

from bwt import ops

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("emulated_device")]


@triton.jit
def add_one(x, length, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < length if MASKED else offsets >= 0
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) + 1, mask=mask)


def test_a_kernel_of_anyone_runs():
    x = torch.zeros(100, device="cuda")
    add_one[(4,)](x, 100, BLOCK=32, MASKED=True)
    assert x.cpu().eq(1).all()


def test_a_kernel_that_leaves_its_tensor_is_noticed():
    x = torch.zeros(100, device="cuda")
    with pytest.raises(RuntimeError, match="out of bounds"):
        add_one[(4,)](x, 100, BLOCK=32, MASKED=False)
    add_one[(4,)](x, 100, BLOCK=32, MASKED=True)  # and the next launch is none the worse


def test_a_view_is_bounded_by_its_storage_and_starts_where_it_says():
    x = torch.zeros(40, device="cuda")
    add_one[(1,)](x[8:], 32, BLOCK=32, MASKED=True)
    assert x.cpu().tolist() == [0] * 8 + [1] * 32


def test_a_tensor_of_the_host_is_refused_by_a_kernel():
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        add_one[(1,)](torch.zeros(32), 32, BLOCK=32, MASKED=True)


def test_devices_do_not_mix():
    x, y = torch.ones(3, device="cuda"), torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        x + y
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat((x, y))
    assert (x + torch.tensor(1.0)).cpu().tolist() == [2, 2, 2]  # a number may come from the host


def test_waits_and_copies_are_counted(emulated_device):
    x = torch.ones(3, device="cuda")
    before = emulated_device.counts()
    y = x * 2 + x.sum()
    assert emulated_device.counts() == before
    y.sum().item()
    torch.ones(3).to("cuda")
    y[x > 0]
    after = emulated_device.counts()
    assert after.reads - before.reads == 2 and after.copies - before.copies == 1


def test_an_op_without_cuda_code_does_not_run():
    x = torch.ones(2, 3, device="cuda")
    with pytest.raises(NotImplementedError, match="gelu has no implementation for CUDA"):
        torch.ops.bwt.gelu(x, None)
    assert ops.gelu(x).device.type == "cuda"  # by torch's own


def test_views_share_memory_and_storages_grow():
    x = torch.zeros(2, 3, device="cuda")
    x.t()[1].fill_(5)
    assert x.cpu().tolist() == [[0, 5, 0], [0, 5, 0]]
    grown = torch.arange(1000, device="cuda")  # made empty and resized
    add_one[(1,)](grown, 32, BLOCK=32, MASKED=True)
    assert grown.cpu()[:33].tolist() == [*range(1, 33), 32]


def test_two_gpus_are_two(emulated_device):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU is emulated")
    x, y = (torch.ones(2, device=f"cuda:{i}") for i in range(2))
    assert (x.device.index, y.device.index) == (0, 1)
    with pytest.raises(RuntimeError, match="same device"):
        x + y


def test_repeated_launches_find_their_gpu(emulated_device):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU is emulated")
    outputs = []
    for i in (0, 1, 0, 1):
        torch.manual_seed(0)
        q = torch.randn(1, 1, 2, 16).to(f"cuda:{i}")
        out = ops.attention(q, q, q).out
        assert out.device.index == i and torch.cuda.current_device() == 0
        outputs.append(out.cpu())
    assert all(torch.equal(out, outputs[0]) for out in outputs)
