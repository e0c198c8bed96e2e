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
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bwt.tasks import Batch, Task

METRICS = ("entropy", "entropy_mae", "kl", "tvd", "excess", "leak", "accuracy")
MEMORY = "memory-"
SEED = 1_000_003  # apart from the seeds of training data
BATCH = 256  # sequences at a time


class NotProbabilities(ValueError):
    """What a model predicts are no log-probabilities."""


class Estimate(NamedTuple):
    """A mean over sequences and its standard error; lists if there is one for each position."""

    mean: float | list[float]
    se: float | list[float]


@dataclasses.dataclass(frozen=True)
class Score:
    """The metrics of one predictor."""

    overall: dict[str, Estimate]
    per_position: dict[str, Estimate]


@dataclasses.dataclass(frozen=True)
class EffectiveMemory:
    """The k of the exact filter seeing only the last k observations whose mean KL is the model's.

    Between the filters that were run, log KL is interpolated linearly in k. A model worse than the
    filter that sees no observation has memory 0; one better than the longest filter has at least
    that memory (at_least).
    """

    observations: float
    at_least: bool


@dataclasses.dataclass(frozen=True)
class Evaluation:
    task: str
    options: dict
    num_sequences: int
    seed: int
    positions: list[int]
    exact: Score  # the posterior itself: its entropy, the best possible accuracy, excess about 0
    model: Score
    floors: dict[str, Score]
    # Best entropy_mae of one who knows the position only: 0 where it determines the entropy.
    position_entropy_mae: float
    effective_memory: EffectiveMemory | None

    def best_floor(self) -> str:
        """The floor of least KL. Filters with a memory are a scale, not floors to be beaten."""
        scale = {name for name in self.floors if name.startswith(MEMORY)} - {f"{MEMORY}0"}
        rivals = [name for name in self.floors if name not in scale]
        return min(rivals, key=lambda name: self.floors[name].overall["kl"].mean)

    def to_json(self) -> str:
        """One JSON document; a number that is not finite becomes null."""
        return json.dumps(_plain(self), allow_nan=False)

    def table(self) -> str:
        """Two aligned tables: by position, and over all positions with the floors."""
        return f"{self._position_table()}\n\n{self._predictor_table()}"

    def _position_table(self) -> str:
        floor = self.best_floor()
        model, exact = self.model.per_position, self.exact.per_position
        columns = {
            "step": [str(step + 1) for step in range(len(self.positions))],
            "exact entropy": [f"{x:.4f}" for x in exact["entropy"].mean],
            "model entropy": [f"{x:.4f}" for x in model["entropy"].mean],
            "entropy_mae": list(map(_number, *model["entropy_mae"])),
            "kl": list(map(_number, *model["kl"])),
            # Adding 0 turns a rounded -0 into 0.
            f"kl of {floor}": [
                f"{round(x, 4) + 0.0:.4f}" for x in self.floors[floor].per_position["kl"].mean
            ],
        }
        return _aligned(columns)

    def _predictor_table(self) -> str:
        scores = {"model": self.model, "exact": self.exact} | self.floors
        columns = {"": list(scores)}
        for metric in self.model.overall:
            columns[metric] = [_number(*score.overall[metric]) for score in scores.values()]
        return _aligned(columns)

    def verdict(self) -> str:
        """Plain words: how far from Bayes, and how much better than the best floor."""
        model, name = self.model.overall, self.best_floor()
        kl, floor = model["kl"], self.floors[name].overall["kl"]
        lines = [
            f"{kl.mean:.3g} ± {kl.se:.1g} bits from exact Bayes (KL); "
            f"entropy off by {model['entropy_mae'].mean:.3g} bits."
        ]
        if kl.mean + 2 * math.hypot(kl.se, floor.se) < floor.mean:
            ratio = floor.mean / max(kl.mean, 1e-12)
            lines.append(
                f"{ratio:.3g} times better than the best floor, {name} ({floor.mean:.3g})."
            )
        else:
            lines.append(f"NOT better than the floor {name} ({floor.mean:.3g} bits).")
        if self.position_entropy_mae <= model["entropy_mae"].mean:
            lines.append(
                f"The position alone gives an entropy error of {self.position_entropy_mae:.4f}: "
                "judge by the KL."
            )
        if self.effective_memory is not None:
            lines.append(_memory_in_words(self.effective_memory))
        accuracy, best = (x.overall["accuracy"].mean for x in (self.model, self.exact))
        lines.append(f"Its best guess is right in {accuracy:.2%} of cases; Bayes' in {best:.2%}.")
        return "\n".join(lines)


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
        num_sequences: at least 2; they are drawn twice from the seed, as the floor that is
            constant per position is fitted to them first, so that it is at its best.

    Raises:
        ValueError: predict returns another shape, or rows that are not log-probabilities.
    """
    if num_sequences < 2 or batch_size < 1:
        raise ValueError(
            "evaluate: needs num_sequences >= 2 (for standard errors) and batch_size >= 1, "
            f"got {num_sequences} and {batch_size}"
        )

    def batches() -> Iterator[Batch]:
        generator = torch.Generator(device).manual_seed(seed)
        for start in range(0, num_sequences, batch_size):
            size = min(batch_size, num_sequences - start)
            yield task.sample(size, generator=generator, device=device)

    constant, position_entropy_mae = _know_the_position(batches())
    tallies: dict[str, _Tally] = {}
    for batch in batches():
        exact = _normalised(batch.posterior)
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


def _know_the_position(batches: Iterator[Batch]) -> tuple[Tensor, float]:
    """The best prediction [P, O] that is constant at each position (its mean posterior), and the
    least mean entropy error of a constant at each position (that of the median)."""
    total, entropies = 0.0, []
    for batch in batches:
        exact = _normalised(batch.posterior)
        total = total + exact.sum(0)
        entropies.append(entropy_bits(exact))
    entropies = torch.cat(entropies)
    error = (entropies - entropies.median(0).values).abs().mean()
    return total / len(entropies), float(error)


class _Tally:
    """Mean and scatter of the metrics over sequences, merged batch by batch."""

    def __init__(self):
        self.count = 0
        self.total = self.scatter = 0.0

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
        names = (*METRICS, "entropy_mae_of_mean")
        overall = zip(mean.mean(1), variance.clamp_min(0).sqrt(), strict=True)
        each = zip(mean, covariance.diagonal(dim1=1, dim2=2).sqrt(), strict=True)
        return Score(_estimates(names, overall), _estimates(names, each))


def _estimates(names, pairs) -> dict[str, Estimate]:
    return {
        name: Estimate(mean.tolist(), se.tolist())
        for name, (mean, se) in zip(names, pairs, strict=True)
    }


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


def _memory_in_words(memory: EffectiveMemory) -> str:
    if memory.at_least:
        return (
            f"Effective memory: at least {memory.observations:.0f} observations "
            "(better than the exact filter that sees only so many)."
        )
    caveat = "" if memory.observations > 1 else " No use of earlier observations shows."
    return (
        f"Effective memory: {memory.observations:.1f} observations "
        f"(as good as an exact filter that sees only so many).{caveat}"
    )


def _number(mean: float, se: float) -> str:
    """With its standard error if it has one; rounding errors are shown as zero."""
    mean = 0.0 if abs(mean) < 1e-9 else mean
    digits = f"{mean:.2e}" if 0 < abs(mean) < 1e-3 else f"{mean:.4f}"
    return f"{digits} ±{se:.0e}" if se > 1e-12 else digits


def _aligned(columns: dict[str, list[str]]) -> str:
    widths = [max(map(len, (head, *cells))) for head, cells in columns.items()]
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _plain(value):
    """Dataclasses and named tuples as JSON objects."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Estimate):
        return {"mean": _plain(value.mean), "se": _plain(value.se)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def predictor(model: nn.Module) -> Callable[[Batch], Tensor]:
    """A model as `evaluate` wants it: batch -> log-probabilities [B, P, O]."""

    def predict(batch: Batch) -> Tensor:
        with torch.inference_mode():
            logits = model(batch.tokens, batch.features, batch.positions)
            return logits.float().log_softmax(-1)

    return predict
