"""What the keys of attention are worth: they are changed, and the bits that costs are counted.

    halved     half way to the mean key of the sequence: what tells keys apart, at half its size.
               Softmax is blind to the mean itself, so that nothing of the future enters
    alike      all the way: attention looks everywhere alike
    permuted   the keys of a sequence in random order, those of later positions among them
    exchanged  those of another sequence at the same positions: only what they say of the position
               is right, and attention is sent where it should not go
    shifted    less one vector for each head, the mean key of all sequences. Softmax is blind to it:
               a control that must cost nothing

These are the keys attention really uses, after rotation. None of it is trained for: a model that
had to do without might find another way, see the model option `keys`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bwt import taps
from bwt.geometry.recording import Recording
from bwt.geometry.stats import estimate
from bwt.geometry.subject import Subject, attends, blocks
from bwt.records.geometry import KeyEdit

SEED = 0


def towards_the_mean(share: float) -> taps.Change:
    return lambda k: torch.lerp(k, k.mean(2, keepdim=True), share)


def permuted(k: Tensor) -> Tensor:
    """Each sequence in an order of its own, the same in all heads."""
    generator = torch.Generator().manual_seed(SEED)
    order = torch.rand(len(k), k.shape[2], generator=generator).argsort(-1).to(k.device)
    return k.gather(2, order[:, None, :, None].expand_as(k))


# Of keys [B, H, T, D].
EDITS: dict[str, taps.Change] = {
    "halved": towards_the_mean(0.5),
    "alike": towards_the_mean(1.0),
    "permuted": permuted,
    "exchanged": lambda k: k.roll(1, 0),
    "shifted": lambda k: k - k.mean((0, 2), keepdim=True),
}


def edit_keys(subject: Subject, tick: Callable[[], None] = lambda: None) -> list[KeyEdit]:
    """Each edit in each layer that has attention, and in all of them at once."""
    intact = Recording.of(subject)
    base_kl, base_error = subject.losses(intact.log_q)
    rows = []
    for name, change in EDITS.items():
        for layer in places(subject):
            kl, error = subject.losses(_predict(intact, layer, change))
            rows.append(KeyEdit(name, layer, estimate(kl - base_kl), estimate(error - base_error)))
            tick()
    return rows


def worth_of_heads(subject: Subject) -> Tensor | None:
    """[layers, heads] bits that are lost with the keys of one head alike, at least 0; None where
    keys cannot be changed. Of two heads that can stand in for each other neither is worth much."""
    layers = [i for i in _attending(subject) if _has_keys(subject, i)]
    if not layers or len(layers) < len(blocks(subject.model)):
        return None
    intact = Recording.of(subject)
    base, _ = subject.losses(intact.log_q)
    trace = subject.look("blocks.*.attn.k")
    rows = []
    for layer in layers:
        heads = range(trace[f"blocks.{layer}.attn.k"].shape[1])
        changed = [subject.losses(_predict(intact, layer, _alike_in(head)))[0] for head in heads]
        rows.append(torch.stack([(kl - base).mean() for kl in changed]))
    return torch.stack(rows).clamp_min(0)


def _has_keys(subject: Subject, layer: int) -> bool:
    return f"blocks.{layer}.attn.k" in taps.names(subject.model)


def _alike_in(head: int) -> taps.Change:
    def change(k: Tensor) -> Tensor:
        own = torch.arange(k.shape[1], device=k.device)[:, None, None] == head
        return torch.where(own, k.mean(2, keepdim=True), k)

    return change


def _predict(intact: Recording, layer: int | None, change: taps.Change) -> Tensor:
    model = intact.subject.model
    if layer is not None:
        return intact.predict_within(layer, taps.patch(model, {f"blocks.{layer}.attn.k": change}))
    with taps.patch(model, {"blocks.*.attn.k": change}):
        return intact.subject.predict()


def _attending(subject: Subject) -> list[int]:
    return [i for i, block in enumerate(blocks(subject.model)) if attends(block)]


def places(subject: Subject) -> list[int | None]:
    """The layers, and None for all at once if there are several."""
    layers = _attending(subject)
    return [*layers, *([None] if len(layers) > 1 else [])]
