"""Key orthogonality: how well attention could tell its addresses apart.

Mean |cos| over pairs of different addresses in a sequence, of the keys attention really uses: after
norm, token shift, projection and rotation. `centred` takes away the mean key of the group first,
because softmax is blind to what all keys share. The task says where its addresses are, and whether
it needs them told apart. A look-up is the work of few heads, so the worth of each is given beside
it: the bits that are lost with its keys alike.
"""

import math

import torch
from torch import Tensor

from bwt.geometry.stats import estimate
from bwt.geometry.subject import Subject
from bwt.records.estimates import Estimate, Estimates
from bwt.records.geometry import KeyCosines, KeyGroup, Keys, Skipped
from bwt.tasks import Addresses

# A key shorter than this share of what it was before centring is rounding: it has no direction.
NEGLIGIBLE = 1e-5


def keys(subject: Subject, untrained: Subject, worth: Tensor | None = None) -> Keys | Skipped:
    """Per group of addresses, layer and head, beside the same model with random weights. worth: of
    each head, see key_edits.worth_of_heads."""
    groups = [group for group in subject.task.addresses if len(group.at) > 1]
    if not groups:
        return Skipped("there are no two addresses in a sequence")
    traces = [x.look("blocks.*.attn.k") for x in (subject, untrained)]
    size = traces[0]["blocks.0.attn.k"].shape[-1]  # of a head
    found = {}
    for group in groups:
        trained, random = (_cosines(subject, trace, group) for trace in traces)
        found[group.name] = KeyGroup(trained, random, len(group.at), group.needed, group.why)
    return Keys(
        found,
        gaussian_cosine(size),
        size,
        sequences=len(subject.batch.tokens),
        worth=None if worth is None else worth.tolist(),
    )


def _cosines(subject: Subject, trace: dict[str, Tensor], group: Addresses) -> KeyCosines:
    group = group.on(subject.positions.device)
    apart = subject.task.different_addresses(subject.batch, group)
    plain, centred = [], []
    for i in range(len(trace)):
        k = trace[f"blocks.{i}.attn.k"][:, :, group.at].double()
        plain.append(_over_sequences(mean_cosine(k, apart)))
        rest = k - k.mean(2, keepdim=True)
        rest = rest * (rest.norm(dim=-1) > NEGLIGIBLE * k.norm(dim=-1))[..., None]
        centred.append(_over_sequences(mean_cosine(rest, apart)))
    return KeyCosines(plain, centred)


def mean_cosine(k: Tensor, apart: Tensor) -> Tensor:
    """[B, H] mean |cos| of keys [B, H, n, D] over the pairs [B, n, n]; keys of length 0 do not
    count, and nan stands where no pair is left."""
    unit = torch.nn.functional.normalize(k.double(), dim=-1)
    alive = (k != 0).any(-1)
    pairs = apart[:, None] & alive[..., None] & alive[..., None, :]
    cosine = (unit @ unit.transpose(-1, -2)).abs() * pairs
    return cosine.sum((-1, -2)) / pairs.sum((-1, -2))


def _over_sequences(values: Tensor) -> Estimates:
    """Of each head [B, H], over the sequences that have such pairs."""
    heads = [x[x.isfinite()] for x in values.t()]
    found = [estimate(x) if len(x) > 1 else Estimate(math.nan, None) for x in heads]
    return Estimates([x.mean for x in found], [x.se for x in found])


def gaussian_cosine(size: int) -> float:
    """E |cos| of two independent Gaussian vectors, about sqrt(2 / (pi size))."""
    return math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.sqrt(math.pi)
