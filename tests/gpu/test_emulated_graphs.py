"""CUDA graphs of the emulated GPU: they must fail where those of a real one do, and forget nothing
of what a real one would do again."""

import pytest
import torch
from torch.nn import functional

from bwt import ops, tasks

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("emulated_device")]

NOT_PERMITTED = "operation not permitted when stream is capturing"
INVALIDATED = "operation failed due to a previous error during capture"
WARM_UP, REPLAYS = 2, 3
SCHEDULE = [0.1, 0.05, 0.2, 0.02, 0.3]


class Training:
    """Random data, attention, cross-entropy and AdamW, its learning rate read from a table on the
    device; or from Python, as a program must not."""

    def __init__(self, python_rate: bool = False):
        self.data = torch.Generator("cuda").manual_seed(1)
        start = torch.Generator("cuda").manual_seed(2)
        self.weights = [
            torch.randn(shape, generator=start, device="cuda").requires_grad_()
            for shape in ((4, 16), (16, 48), (16, 4))
        ]
        rate = torch.zeros((), device="cuda")
        self.optimizer = torch.optim.AdamW(self.weights, rate, fused=True, capturable=True)
        self.rates = torch.tensor(SCHEDULE).to("cuda")
        self.done = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.loss = torch.zeros((), device="cuda")
        self.python_rates = iter(SCHEDULE) if python_rate else None

    def set_rate(self) -> None:
        group = self.optimizer.param_groups[0]
        if self.python_rates:
            group["lr"] = next(self.python_rates)
        else:
            group["lr"].copy_(self.rates.index_select(0, self.done).squeeze(0))
            self.done += 1

    def step(self) -> None:
        tokens = torch.randint(4, (2, 6), generator=self.data, device="cuda")
        embedding, mixing, head = self.weights
        q, k, v = (embedding[tokens] @ mixing).unflatten(-1, (3, 1, 16)).permute(2, 0, 3, 1, 4)
        logits = ops.attention(q, k, v).out.squeeze(1) @ head
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        for w in self.weights:
            w.grad = None
        loss.backward()
        self.set_rate()
        self.optimizer.step()
        self.loss += loss.detach()

    def state(self) -> list[torch.Tensor]:
        kept = [x for entry in self.optimizer.state.values() for x in entry.values()]
        tensors = [*self.weights, *kept, self.done, self.loss]
        return [x.detach().cpu().clone() for x in tensors] + [self.data.get_state()]

    def captured(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.data)
        with torch.cuda.graph(graph):
            self.step()
        return graph


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def capture(call, *generators, **options) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, **options):
        call()
    return graph


@pytest.fixture(autouse=True)
def on_the_default_stream():
    """torch.cuda.graph stays on its stream when a capture fails."""
    yield
    torch.cuda.set_stream(torch.cuda.default_stream())


@pytest.fixture(scope="module")
def eager() -> list[list[torch.Tensor]]:
    """The states after each step."""
    training, states = Training(), []
    for _ in range(WARM_UP + REPLAYS):
        training.step()
        states.append(training.state())
    return states


def test_replays_are_the_steps_bit_for_bit(eager):
    training = Training()
    graph = training.captured()
    assert same(training.state(), eager[WARM_UP - 1])  # nothing has run
    for state in eager[WARM_UP:]:
        graph.replay()
        assert same(training.state(), state)
    assert not same(eager[-1], eager[-2])


def test_a_learning_rate_of_python_goes_stale(eager):
    training, replayed = Training(python_rate=True), Training(python_rate=True)
    graph = replayed.captured()
    for _ in range(WARM_UP + REPLAYS - 1):
        training.step()
    graph.replay()  # at the rate of the capture
    assert same(replayed.state()[:3], eager[WARM_UP][:3])
    for _ in range(REPLAYS - 2):
        graph.replay()
    assert not same(replayed.state()[:3], training.state()[:3])


def test_a_state_of_the_generator_is_returned_to():
    training = Training()
    graph = training.captured()
    graph.replay()
    state, before = training.data.get_state(), training.state()
    graph.replay()
    after = training.state()
    for w, saved in zip(training.weights, before, strict=False):
        w.detach().copy_(saved)
    kept = [x for entry in training.optimizer.state.values() for x in entry.values()]
    for x, saved in zip((*kept, training.done, training.loss), before[3:], strict=False):
        x.copy_(saved)
    training.data.set_state(state)
    graph.replay()
    assert same(training.state(), after)


def test_a_capture_computes_nothing():
    x, source = torch.arange(3.0, device="cuda"), torch.Generator("cuda").manual_seed(0)
    state = source.get_state()
    results = []

    def work():
        x.add_(1)
        results.append(x + torch.rand(3, generator=source, device="cuda"))

    graph = capture(work, source)
    assert x.tolist() == [0, 1, 2] and torch.equal(source.get_state(), state)
    assert results[0].isnan().all()  # whatever was in that memory
    address = results[0].data_ptr()
    graph.replay()
    drawn = torch.rand(3, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    assert x.tolist() == [1, 2, 3] and torch.equal(results[0], x + drawn)
    assert results[0].data_ptr() == address and not torch.equal(source.get_state(), state)


def test_memory_that_was_never_written_holds_nothing_of_the_last_replay():
    results = []

    def work():
        results.append(torch.empty(3, device="cuda"))

    graph = capture(work)
    results[0].fill_(1)
    graph.replay()
    assert results[0].isnan().all()


def test_numbers_of_the_host_are_those_of_the_capture():
    x, number, scalar = torch.zeros(2, device="cuda"), 2.0, torch.tensor(3.0)
    graph = capture(lambda: x.add_(number).add_(scalar))
    scalar.fill_(100)
    graph.replay()
    assert x.tolist() == [5, 5]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: torch.ones(3).to("cuda"),
        lambda x: torch._foreach_copy_([x], [torch.ones(3)]),
        lambda x: x + torch.tensor(1.0, device="cuda"),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.accelerator.synchronize(),
        lambda x: torch.cuda.current_stream().synchronize(),
        lambda x: torch.cuda.Event().synchronize(),
        lambda x: capture(lambda: x.add_(1)),
    ],
)
def test_what_cuda_forbids_while_capturing(work):
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match=INVALIDATED) as caught:
        capture(lambda: work(x.add_(1)))
    assert NOT_PERMITTED in str(caught.value.__context__)
    assert not torch.cuda.is_current_stream_capturing() and x.tolist() == [1, 1, 1]
    capture(lambda: x.add_(1)).replay()  # and the next capture is none the worse
    assert x.tolist() == [2, 2, 2]


def test_a_generator_that_is_not_registered_is_refused():
    known, unknown = (torch.Generator("cuda").manual_seed(i) for i in range(2))
    with pytest.raises(RuntimeError, match=INVALIDATED) as caught:
        capture(lambda: torch.rand(3, generator=unknown, device="cuda"), known)
    assert "generator not in capture mode" in str(caught.value.__context__)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.cuda.CUDAGraph().register_generator_state(torch.Generator())


@pytest.mark.parametrize(
    "call",
    [
        lambda source: source.get_state(),
        lambda source: source.set_state(source.clone_state()),
        lambda source: source.manual_seed(1),
    ],
)
def test_a_generator_is_left_alone_while_capturing(call):
    source = torch.Generator("cuda")
    with pytest.raises(RuntimeError, match="during CUDA graph capture"):
        capture(lambda: call(source), source)


def test_the_default_generator_needs_no_registration():
    drawn = []
    state = torch.random.get_rng_state()
    graph = capture(lambda: drawn.append(torch.rand(3, device="cuda")))
    assert torch.equal(torch.random.get_rng_state(), state)
    graph.replay()
    assert not torch.equal(torch.random.get_rng_state(), state)


def test_an_optimizer_that_cannot_be_captured_says_so():
    training = Training()
    training.step()
    training.optimizer.param_groups[0]["capturable"] = False
    with pytest.raises(RuntimeError, match="capturable is False"):
        capture(training.step, training.data)


def test_a_graph_that_is_none():
    graph = torch.cuda.CUDAGraph()
    for call in (graph.replay, graph.pool):
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            call()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()


def test_reset_lets_go_of_the_graph_and_its_memory(emulated_device):
    x, results = torch.zeros(3, device="cuda"), []
    graph = capture(lambda: results.append(x.add_(1) + 1))
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin()
    address = results.pop().data_ptr()
    assert emulated_device.allocation(address)
    graph.reset()
    assert not emulated_device.allocation(address)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with torch.cuda.graph(graph):
        x.add_(5)
    graph.replay()
    assert x.tolist() == [5, 5, 5]


def test_memory_that_was_freed_after_the_capture_is_missed():
    x, held = torch.zeros(3, device="cuda"), [torch.ones(3, device="cuda")]
    graph = capture(lambda: x.add_(held[0]))
    graph.replay()
    held.clear()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        graph.replay()


def test_graphs_may_share_a_pool():
    x = torch.zeros(3, device="cuda")
    first = capture(lambda: x.add_(1), pool=torch.cuda.graph_pool_handle())
    second = capture(lambda: x.mul_(3), pool=first.pool(), capture_error_mode="thread_local")
    for graph in (first, second, first):
        graph.replay()
    assert x.tolist() == [4, 4, 4] and first.pool() == second.pool()


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_kernels_of_the_extension_are_captured(noise):
    """Those of bijection_posterior, which are launched by C++."""
    task = tasks.get("bijection", num_symbols=3, num_pairs=2, replacement=noise > 0, noise=noise)
    source = torch.Generator("cuda").manual_seed(0)
    batches = []

    def work():
        batches.append(task.sample(1, generator=source, device=torch.device("cuda")))

    work()
    state = source.get_state()
    graph = capture(work, source)
    graph.replay()
    source.set_state(state)
    work()
    _, replayed, eager = batches
    for mine, own in zip(replayed, eager, strict=True):
        assert (mine is own is None) or torch.equal(mine.cpu(), own.cpu())


def test_the_extension_allocates_nothing_while_capturing():
    """Its list of subsets has to be there: no other test has so many symbols."""
    keys, channel = torch.zeros(1, 1, dtype=torch.int64), torch.eye(13, dtype=torch.float64)
    inputs = keys.to("cuda"), keys.to("cuda"), channel.to("cuda")
    noisy = torch.ops.bwt.bijection_posterior.noisy
    with pytest.raises(RuntimeError, match=INVALIDATED) as caught:
        capture(lambda: noisy(*inputs, torch.float32))
    assert NOT_PERMITTED in str(caught.value.__context__)


def test_launches_are_counted(emulated_device):
    x = torch.ones(4, 4, device="cuda")
    before = emulated_device.launches()
    (x @ x.t()).add_(1).view(16)[3:].unsqueeze(0)  # a product and a sum: views launch nothing
    assert emulated_device.launches() == before._replace(kernels=before.kernels + 2)
    torch._foreach_mul_([x, x], 2)
    assert emulated_device.launches().kernels == before.kernels + 3
    q = torch.ones(1, 1, 3, 16, device="cuda")
    before = emulated_device.launches()
    ops.attention(q, q, q)
    assert emulated_device.launches().kernels == before.kernels + 1


def test_a_replay_is_one_launch_and_neither_waits_nor_feeds(emulated_device):
    training = Training()
    graph = training.captured()
    before, counts = emulated_device.launches(), emulated_device.counts()
    graph.replay()
    assert emulated_device.launches() == before._replace(graphs=before.graphs + 1)
    before = emulated_device.launches()
    training.step()
    assert emulated_device.launches().kernels > before.kernels + 20
    assert emulated_device.counts() == counts


def test_memory_figures_can_be_asked_for():
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.empty_cache()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == 0
