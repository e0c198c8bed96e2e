"""How far a model is from exact Bayes, in bits, beside predictors that lack an ability.

Per sequence and position, with p the exact posterior and q the prediction:

    entropy       H(q)
    entropy_mae   |H(q) - H(p)|
    kl            sum p log2(p / q)
    tvd           sum |p - q| / 2
    excess        -log2 q(target) - H(p), whose mean is that of kl, from draws alone
    leak          mass of q on outcomes that p excludes
    accuracy      1 if the likeliest outcome of q is the target

and, over sequences first, entropy_mae_of_mean = |mean (H(q) - H(p))|, in which errors of opposite
sign cancel. Means over positions are taken per sequence, so that standard errors are those of
independent sequences.

>>> import bwt
>>> task = bwt.tasks.get("bijection", num_symbols=4)
>>> model = bwt.models.build_for(task, "transformer")  # untrained: it guesses uniformly
>>> result = bwt.evaluate.evaluate(bwt.evaluate.predictor(model), task, num_sequences=64)
>>> result.model.overall["kl"] == result.floors["uniform"].overall["kl"], result.beats_floor()
(True, False)
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from bwt import streams
from bwt.records.estimates import Estimate, Estimates
from bwt.records.evaluation import METRICS, OF_MEAN, EffectiveMemory, Evaluation, Score
from bwt.records.floors import MEMORY
from bwt.tasks import Batch, Task

BATCH = 256  # sequences at a time
ENTROPY_SECONDS, ENTROPY_ERROR = 2.0, 5e-4  # limits of an estimate: time, standard error
KEPT_BYTES = 1 << 28  # of sampled sequences and posteriors


class NotProbabilities(ValueError):
    """What a model predicts are no log-probabilities."""


@torch.no_grad()
def evaluate(
    predict: Callable[[Batch], Tensor],
    task: Task,
    *,
    num_sequences: int = 2048,
    batch_size: int = 256,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """Compares predictions with the exact posterior on fresh sequences.

    Args:
        predict: gives the log-probabilities [B, P, O] (natural log) of a batch's outcomes.
        num_sequences: at least 2. The floor that is constant per position is fitted to them first,
            so that it is at its best.

    Raises:
        ValueError: predict returns another shape, or rows that are not log-probabilities.
    """
    if num_sequences < 2 or batch_size < 1:
        raise ValueError(
            "evaluate: needs num_sequences >= 2 (for standard errors) and batch_size >= 1, "
            f"got {num_sequences} and {batch_size}"
        )

    starts = range(0, num_sequences, batch_size)
    sizes = [min(batch_size, num_sequences - start) for start in starts]
    batches = _Batches(task, sizes, streams.generator("evaluation", seed, device))
    constant, position_entropy_mae = _know_the_position(batches)
    tallies: dict[str, _Tally] = {}
    for batch in batches:
        exact = _normalised(batch.exact)
        predictions = {
            "exact": exact.log(),
            "model": _checked(predict(batch), exact.shape),
            "uniform": torch.full_like(exact, -math.log(task.num_outcomes)),
            "constant": constant.log().expand_as(exact),
        }
        for name, floor in task.floors(batch).items():
            predictions[name] = _normalised(floor).log()
        for name, log_q in predictions.items():
            tallies.setdefault(name, _Tally()).add(measure(log_q, exact, batch.targets))
    scores = {name: tally.score() for name, tally in tallies.items()}
    model = scores.pop("model")
    return Evaluation(
        task=task.name,
        options=task.options(),
        num_sequences=num_sequences,
        seed=seed,
        positions=task.positions.tolist(),
        exact=scores.pop("exact"),
        model=model,
        floors=scores,
        position_entropy_mae=position_entropy_mae,
        effective_memory=_effective_memory(model, scores),
    )


@torch.no_grad()
def expected_entropy(
    task: Task, *, seed: int = 0, device: torch.device | str = "cpu"
) -> tuple[float, float]:
    """Return the mean entropy of the exact posteriors in bits, and its standard error: in closed
    form (without error) where the task has one, otherwise from sampled sequences."""
    if (exact := task.expected_entropy()) is not None:
        return exact, 0.0
    generator = streams.generator("entropy", seed, device)
    count, total, squares = 0, 0.0, 0.0
    start = time.perf_counter()
    while True:
        batch = task.sample(BATCH, generator=generator, device=device)
        entropies = entropy_bits(batch.exact.double()).mean(1)
        count += BATCH
        total += float(entropies.sum())
        squares += float(entropies.square().sum())
        mean = total / count
        error = math.sqrt(max(0.0, squares / count - mean**2) / count)
        if error < ENTROPY_ERROR or time.perf_counter() - start > ENTROPY_SECONDS:
            return mean, error


class _Batches:
    """Fresh batches to iterate over several times: the first ones, up to KEPT_BYTES, are sampled
    once and kept, the others are sampled again by each iteration."""

    def __init__(self, task: Task, sizes: Sequence[int], generator: torch.Generator):
        self.task, self.sizes, self.generator = task, sizes, generator
        self.kept: list[Batch] = []
        self.state, self.room = generator.get_state(), KEPT_BYTES  # after the kept ones

    def __iter__(self) -> Iterator[Batch]:
        yield from self.kept
        self.generator.set_state(self.state)
        for size in self.sizes[len(self.kept) :]:
            batch = self.task.sample(size, generator=self.generator, device=self.generator.device)
            self.room -= sum(x.nbytes for x in batch if x is not None)
            if self.room >= 0:
                self.kept.append(batch)
                self.state = self.generator.get_state()
            yield batch


def measure(log_q: Tensor, p: Tensor, targets: Tensor) -> Tensor:
    """[M + 1, B, P] METRICS of log-probabilities (natural) against p, and last H(q) - H(p)."""
    q = log_q.exp()
    exact_entropy, entropy = entropy_bits(p), entropy_bits(q)
    log_ratio = torch.where(p > 0, p.log() - log_q, 0.0)  # a factor of 0 would make 0 * inf
    log_hit = log_q.gather(-1, targets[..., None])[..., 0]
    metrics = (
        entropy,
        (entropy - exact_entropy).abs(),
        (p * log_ratio).sum(-1) / math.log(2),
        (p - q).abs().sum(-1) / 2,
        -log_hit / math.log(2) - exact_entropy,
        torch.where(p > 0, 0.0, q).sum(-1),
        (log_q.argmax(-1) == targets).double(),
        entropy - exact_entropy,
    )
    return torch.stack(metrics)


def entropy_bits(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1) / math.log(2)


def _normalised(p: Tensor) -> Tensor:
    """In float64; what float32 rounding left of the sum goes away."""
    p = p.double()
    return p / p.sum(-1, keepdim=True)


def _checked(log_q: Tensor, shape: torch.Size) -> Tensor:
    if log_q.shape != shape:
        raise ValueError(
            f"evaluate: predict must return [batch, positions, outcomes] = {list(shape)}, "
            f"got {list(log_q.shape)}"
        )
    log_q = log_q.double()
    total = log_q.logsumexp(-1)
    # Low precision leaves about 1e-2; raw logits are off by more. Written to fail on NaN.
    if not bool((total.abs() < 0.05).all()):
        worst = total.flatten()[total.flatten().abs().nan_to_num(nan=math.inf).argmax()].exp()
        raise NotProbabilities(
            "evaluate: predict must return log-probabilities; a row of them sums to "
            f"{float(worst):.4g} (use log_softmax)"
        )
    return log_q - total[..., None]


def _know_the_position(batches: Iterable[Batch]) -> tuple[Tensor, float]:
    """The best prediction [P, O] that is constant at each position (its mean posterior), and the
    least mean entropy error of a constant at each position (that of the median)."""
    total, parts = torch.zeros(()), []
    for batch in batches:
        exact = _normalised(batch.exact)
        total = total + exact.sum(0)
        parts.append(entropy_bits(exact))
    entropies = torch.cat(parts)
    error = (entropies - entropies.median(0).values).abs().mean()
    return total / len(entropies), float(error)


class _Tally:
    """Mean and scatter of the metrics over sequences, merged batch by batch."""

    def __init__(self) -> None:
        self.count = 0
        self.total = self.scatter = torch.zeros(())

    def add(self, metrics: Tensor) -> None:
        """[M + 1, B, P]; the scatter [M + 1, P, P] is about the mean, so that nothing cancels."""
        batch_size = metrics.shape[1]
        total = metrics.sum(1)
        centred = metrics - total[:, None] / batch_size
        scatter = centred.transpose(1, 2) @ centred
        if self.count:
            shift = total / batch_size - self.total / self.count
            weight = batch_size * self.count / (batch_size + self.count)
            scatter = scatter + weight * shift[:, :, None] * shift[:, None, :]
        self.count += batch_size
        self.total = self.total + total
        self.scatter = self.scatter + scatter

    def score(self) -> Score:
        mean = self.total / self.count  # [M + 1, P]
        covariance = self.scatter / (self.count * (self.count - 1))  # of the means
        # The last one is signed: |mean| is the mean with the signs of the means.
        sign = torch.ones_like(mean)
        sign[-1] = mean[-1].sign()
        mean = mean * sign
        variance = (sign[:, None] @ covariance @ sign[:, :, None]).flatten() / mean.shape[1] ** 2
        names = (*METRICS, OF_MEAN)
        overall = zip(mean.mean(1).tolist(), variance.clamp_min(0).sqrt().tolist(), strict=True)
        errors = covariance.diagonal(dim1=1, dim2=2).sqrt()
        each = zip(mean.tolist(), errors.tolist(), strict=True)
        return Score(
            {name: Estimate(*pair) for name, pair in zip(names, overall, strict=True)},
            {name: Estimates(*pair) for name, pair in zip(names, each, strict=True)},
        )


def _effective_memory(model: Score, floors: dict[str, Score]) -> EffectiveMemory | None:
    scale = {
        int(name.removeprefix(MEMORY)): score.overall["kl"].mean
        for name, score in floors.items()
        if name.startswith(MEMORY)
    }
    return read_memory(model.overall["kl"].mean, scale) if scale else None


def read_memory(kl: float, scale: dict[int, float]) -> EffectiveMemory:
    """See EffectiveMemory; scale maps k to the mean KL of the filter with memory k."""
    memories = sorted(scale)
    if kl >= scale[memories[0]]:
        return EffectiveMemory(float(memories[0]), at_least=False)
    for shorter, longer in zip(memories, memories[1:], strict=False):
        if kl > scale[longer]:
            above, below = math.log(scale[shorter]), math.log(max(scale[longer], 1e-300))
            share = (above - math.log(kl)) / (above - below)
            return EffectiveMemory(shorter + share * (longer - shorter), at_least=False)
    return EffectiveMemory(float(memories[-1]), at_least=True)


def predictor(model: nn.Module) -> Callable[[Batch], Tensor]:
    """A model as `evaluate` wants it: batch -> log-probabilities [B, P, O]."""

    def predict(batch: Batch) -> Tensor:
        with torch.inference_mode():
            logits = model(batch.tokens, batch.features, batch.positions)
            return logits.float().log_softmax(-1)

    return predict
