"""The logit lens: what the model would answer if it stopped at a stage of its residual stream.

`raw` applies the model's own head to the states of the stage. That may fail because the stage says
the same thing in other coordinates; so `tuned` has an affine map of the normalised states in front
of a softmax, fitted on half of the sequences to the model's final answer. All is measured on the
other half, beside the floors of the task, and beside the same fit to states of the untrained model:
what an affine map makes of the input by itself.
"""

import math

import torch
from torch import Tensor, nn

from bwt.geometry.stats import estimate
from bwt.geometry.subject import Subject, stages
from bwt.records.estimates import Estimate
from bwt.records.geometry import Lens, LensStage, Skipped

RIDGE = 1e-5  # on weights of states scaled to unit variance: enough for a unique answer
ITERATIONS = 100
TINY = 1e-12  # for exact zeros, whose logarithm is needed


def lens(subject: Subject, untrained: Subject) -> Lens | Skipped:
    model, half = subject.model, len(subject.batch.tokens) // 2
    if not hasattr(model, "head"):
        return Skipped("the model has no head that could be applied to earlier states")
    names, rest = stages(model), subject.part(slice(half, None))
    final = subject.predict()
    states, control = (s.look(*names) for s in (subject, untrained))
    width = states[names[-1]].shape[-1]

    def bits(log_q: Tensor) -> Estimate:
        return _bits(rest, log_q)

    def read(x: Tensor) -> Estimate:
        return bits(tuned(_normalised(model, x, width), final))

    return Lens(
        stages=names,
        readings=[
            LensStage(
                raw=_raw(model, states[name][half:], rest, width),
                tuned=read(states[name]),
                untrained=read(control[name]),
            )
            for name in names
        ],
        model=bits(final[half:]),
        floors=_floors(rest),
        sequences=len(rest.batch.tokens),
    )


def _bits(subject: Subject, log_q: Tensor) -> Estimate:
    return estimate(subject.kl(log_q).mean(-1))


def _raw(model: nn.Module, x: Tensor, rest: Subject, width: int) -> Estimate | None:
    """None where the head does not fit: an embedding of another width."""
    if x.shape[-1] != width:
        return None
    with torch.no_grad():
        logits = model.get_submodule("head")(x, model.embed)
    return _bits(rest, logits.double().log_softmax(-1))


def _normalised(model: nn.Module, x: Tensor, width: int) -> Tensor:
    """As in front of the head, so that the last stage says what the model does."""
    norm = getattr(model.head, "norm", None)
    if norm is None or x.shape[-1] != width:
        return x
    with torch.no_grad():
        return norm(x)


def tuned(x: Tensor, final: Tensor) -> Tensor:
    """Log-probabilities [B - half, P, O] of the affine map of states [B, P, C] that is nearest to
    the final ones [B, P, O], in KL, on the first half of the sequences."""
    half = len(x) // 2
    x = x.double()
    mean, scale = x[:half].mean((0, 1)), x[:half].std((0, 1))
    x = (x - mean) / torch.where(scale > 1e-6 * scale.max(), scale, math.inf)
    known, goal = x[:half].flatten(0, 1), final[:half].flatten(0, 1).exp()
    weight = x.new_zeros(x.shape[-1], final.shape[-1], requires_grad=True)
    bias = goal.mean(0).clamp_min(TINY).log().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        log_q = (known @ weight + bias).log_softmax(-1)
        value = -(goal * log_q).sum(-1).mean() + RIDGE * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        return (x[half:] @ weight + bias).log_softmax(-1)


def _floors(subject: Subject) -> dict[str, Estimate]:
    """Uniform, and those of the task; the weakest come first."""
    uniform = torch.full_like(subject.exact, 1 / subject.exact.shape[-1])
    floors = {"uniform": uniform, **subject.task.floors(subject.batch)}
    return {
        name: _bits(subject, q.double().clamp_min(TINY).log().log_softmax(-1))
        for name, q in floors.items()
    }
