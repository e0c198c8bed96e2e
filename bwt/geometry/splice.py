"""Does a model update its belief step by step, or compute it from the observations again?

At a step t the model is given states of another sequence, a donor with the same hypothesis (the
same header) and other observations; it then reads on in its own. One that carries its belief along
predicts from t + 1 on the *spliced* posterior, of the donor's observations up to t and its own
after them. One that looks at the observations again does not: of the donor it can at most have
seen the one observation at t. What is exchanged:

    input     what enters at the position of t
    residual  the output of one block at this position
    blocks    the outputs of all blocks there
    memory    all that one layer keeps of the positions up to t: keys and values of attention, the
              states (and the convolution's window) of Mamba, h and c of an LSTM; seen after t only
    state     of Mamba: the states of the scan without the window

The memories of all layers together are not listed: with them the model has read the spliced
sequence, which is the ceiling.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bwt import streams
from bwt.evaluate import METRICS, measure
from bwt.geometry.intervene import Edit, edited
from bwt.geometry.recording import Recording
from bwt.geometry.stats import pooled, ratio
from bwt.geometry.subject import CHUNK, Subject, blocks, has_attention, rows_of
from bwt.records.estimates import Estimate, Estimates
from bwt.records.geometry import Skipped, Splice, SplicedPlace
from bwt.tasks import Batch, Task

LAGS = 7  # 0 .. 6 steps after the exchange
STEPS = 3  # at which states are exchanged
LEAST = 1e-4  # bits: with less to go, a share of the way means nothing
TINY = 1e-12  # for exact zeros, whose logarithm is needed
KL = METRICS.index("kl")

States = dict[str, Tensor]  # "embed" and "blocks.i" of the donor, [B, T, C]


class Place(NamedTuple):
    kind: str
    layer: int | None = None


def places(model: nn.Module) -> list[Place]:
    layers = range(len(blocks(model)))
    found = [Place("input"), *(Place("residual", i) for i in layers), Place("blocks")]
    found += [Place("memory", i) for i in layers if _remembers(blocks(model)[i])]
    scans = [i for i in layers if hasattr(blocks(model)[i], "mixer")]
    return found + [Place("state", i) for i in scans] + [Place("state")] * bool(scans)


def _remembers(block: nn.Module) -> bool:
    return any(hasattr(block, name) for name in ("attn", "mixer", "stack"))


@contextmanager
def exchanged(model: nn.Module, place: Place, donor: States, position: int) -> Iterator[None]:
    """Inside the block the model has the donor's states at this place."""
    with ExitStack() as stack:
        for path, edit in _edits(model, place, donor, position):
            stack.enter_context(edited(model, path, edit))
        yield


def _edits(
    model: nn.Module, place: Place, donor: States, position: int
) -> Iterator[tuple[str, Edit]]:
    """Paths of modules, and what is done to them."""
    if place.kind == "input":
        yield "embed", _put(donor["embed"], position)
        return
    for i in range(len(blocks(model))) if place.layer is None else [place.layer]:
        path, before = f"blocks.{i}", f"blocks.{i - 1}" if i else "embed"
        if place.kind in ("residual", "blocks"):
            yield path, _put(donor[path], position)
            continue
        # Inner hooks run first: what the convolution gave is known when the block ends.
        if place.kind == "state":
            yield f"{path}.mixer.conv", _keep_after(position)
        yield path, _remember(donor[before], position)


def _put(states: Tensor, position: int) -> Edit:
    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        y = y.clone()
        y[:, position] = states[:, position]
        return y

    return edit


def _remember(inputs: Tensor, position: int) -> Edit:
    """A causal layer that has read other inputs up to the position: what comes out after it
    depends on them only through what the layer has kept."""
    end = position + 1

    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        other = module.forward(torch.cat((inputs[:, :end], x[:, end:]), 1))
        return torch.cat((y[:, :end], other[:, end:]), 1)

    return edit


def _read_instead(batch: Batch) -> Edit:
    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return module.forward(batch.tokens, batch.features)

    return edit


def _keep_after(position: int) -> Edit:
    """Of two calls, the second has after the position what the first had: the window stays."""
    end = position + 1
    first: list[Tensor] = []

    def edit(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if not first:
            first.append(y)
            return y
        return torch.cat((y[:, :end], first.pop()[:, end:]), 1)

    return edit


def spliced(task: Task, batch: Batch, donor: Batch, position: int) -> Batch:
    """The donor's tokens up to a position, then those of the batch."""
    end = position + 1 - task.num_features
    tokens = torch.cat((donor.tokens[:, :end], batch.tokens[:, end:]), 1)
    return batch._replace(tokens=tokens, posterior=None)


class Readings(NamedTuple):
    """Bits [B, steps, lags] to the spliced posterior."""

    possible: Tensor  # 1, or 0 where the spliced observations cannot happen
    plain: Tensor
    ceiling: Tensor
    apart: Tensor
    one: Tensor
    patched: Tensor  # [B, steps, lags, places]
    own: Tensor  # the same, to the posterior of the own sequence


def splice(subject: Subject, tick: Callable[[], None] = lambda: None) -> Splice | Skipped:
    task, batch = subject.task, subject.batch
    generator = streams.generator("donors", 0, subject.positions.device)
    donor = task.redrawn(batch, generator=generator)
    count = subject.exact.shape[1]
    if donor is None:
        return Skipped(f"sequences of {task.name} cannot be continued by those of another")
    if count < 2:
        return Skipped("there is no step after the first")
    steps, lags = exchange_steps(count)
    found = []
    for start in range(0, len(batch.tokens), CHUNK):
        rows = slice(start, start + CHUNK)
        part = subject.part(rows)
        found.append(_read(part, rows_of(donor, rows), steps, lags, tick))
    readings = Readings(*(torch.cat(x) for x in zip(*found, strict=True)))
    if not bool((readings.possible.sum((0, 1)) >= 2).all()):
        return Skipped("hardly any sequence can be continued by another")
    return _record(readings, subject.model, [step + 1 for step in steps])


def exchange_steps(count: int) -> tuple[list[int], int]:
    """Indices of steps, and how many to read from each; not from the first steps, where donors
    have seen next to nothing."""
    lags = min(LAGS, count // 2 + 1)
    first, last = min(count // 4, count - lags), count - lags
    return sorted({first + round(j * (last - first) / (STEPS - 1)) for j in range(STEPS)}), lags


def _read(
    subject: Subject, donor: Batch, steps: list[int], lags: int, tick: Callable[[], None]
) -> Readings:
    intact = Recording.of(subject)
    # Of the donors only the model's inside is asked for, not how good it is.
    other = Recording.of(replace(subject, batch=donor))
    rows = []
    for step in steps:
        position, window = int(subject.positions[step]), slice(step, step + lags)
        rows.append(_read_step(intact, other, position, window, tick))
    return Readings(*(torch.stack(x, 1) for x in zip(*rows, strict=True)))


def _read_step(
    intact: Recording,
    other: Recording,
    position: int,
    window: slice,
    tick: Callable[[], None],
) -> Readings:
    """[B, lags] each."""
    subject, donor = intact.subject, other.subject.batch
    task, batch = subject.task, subject.batch
    joined = spliced(task, batch, donor, position)
    goal, possible = _exact(task, joined, window)
    single = batch.tokens.clone()
    at = position - task.num_features
    single[:, at] = donor.tokens[:, at]
    one, one_possible = _exact(task, batch._replace(tokens=single), window)
    possible = possible & one_possible
    own = subject.exact[:, window]

    def bits(log_q: Tensor, p: Tensor) -> Tensor:
        kl = measure(log_q, p, batch.targets[:, window])[KL]
        return torch.where(possible, kl, 0.0)

    patched, to_own = [], []
    for place in places(subject.model):
        log_q = _predict(intact, place, other.outputs, position, window)
        patched.append(bits(log_q, goal))
        to_own.append(bits(log_q, own))
        tick()
    # Up to the exchange it is a run of the donor.
    ceiling = other.predict("embed", _read_instead(joined), window)
    return Readings(
        possible=possible.double(),
        plain=bits(intact.log_q[:, window], goal),
        ceiling=bits(ceiling, goal),
        apart=bits(own.clamp_min(TINY).log(), goal),
        one=bits(one.clamp_min(TINY).log(), goal),
        patched=torch.stack(patched, -1),
        own=torch.stack(to_own, -1),
    )


def _predict(
    intact: Recording, place: Place, states: States, position: int, window: slice
) -> Tensor:
    subject = intact.subject
    edits = list(_edits(subject.model, place, states, position))
    if len(edits) == 1:
        return intact.predict(*edits[0], window)
    with exchanged(subject.model, place, states, position):
        return subject.predict()[:, window]


def _exact(task: Task, batch: Batch, window: slice) -> tuple[Tensor, Tensor]:
    """The posterior [B, lags, O], and where there is one: uniform stands where not."""
    exact = task.posterior(batch)[:, window].double()
    total = exact.sum(-1, keepdim=True)
    possible = total > 0.5
    uniform = torch.full_like(exact, 1 / exact.shape[-1])
    return torch.where(possible, exact / total, uniform), possible[..., 0]


def _record(readings: Readings, model: nn.Module, steps: list[int]) -> Splice:
    count, plain, ceiling, apart, one = (x.sum(1) for x in readings[:5])  # [B, lags]
    patched, own = (x.sum(1) for x in readings[5:])
    return Splice(
        steps=steps,
        recurrent=any(map(_remembers, blocks(model))) and not has_attention(model),
        plain=_means(plain, count),
        ceiling=_means(ceiling, count),
        apart=_means(apart, count),
        one=_shares(apart - one, apart, count),
        places=[
            SplicedPlace(
                kind=place.kind,
                layer=place.layer,
                follows=_shares(plain - patched[..., i], plain - ceiling, count),
                spliced=_means(patched[..., i], count),
                own=_means(own[..., i], count),
            )
            for i, place in enumerate(places(model))
        ],
        sequences=len(count),
    )


def _means(total: Tensor, count: Tensor) -> Estimates:
    """Of each lag, at which some sequences are possible."""
    rows = [pooled(a, b) for a, b in zip(total.unbind(1), count.unbind(1), strict=True)]
    return Estimates([x.mean for x in rows], [x.se for x in rows])


def _shares(gone: Tensor, way: Tensor, count: Tensor) -> list[Estimate | None]:
    """Of each lag, how much of the way; None if the way is not clearly there."""
    shares = []
    for part, whole, n in zip(gone.unbind(1), way.unbind(1), count.unbind(1), strict=True):
        length = pooled(whole, n)
        there = length.mean > max(LEAST, 3 * length.error)
        shares.append(ratio(part, whole) if there else None)
    return shares


def work(subject: Subject) -> int:
    """How often that ticks."""
    count = subject.exact.shape[1]
    if count < 2:
        return 0
    chunks = -(-len(subject.batch.tokens) // CHUNK)
    return chunks * len(exchange_steps(count)[0]) * len(places(subject.model))
