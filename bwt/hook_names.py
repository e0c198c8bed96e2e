"""TransformerLens' names for the values inside a model, beside ours.

Where a name of theirs is asked for, values come with their axes: heads of q, k, v and z are at
[batch, position, head, channel] there and at [B, H, T, D] here. The names that have a counterpart,
with `i` for the number of a block:

    hook_embed                tokens alone, without positions: embed.token
    blocks.i.hook_resid_pre   what block i is given
    blocks.i.hook_resid_mid   blocks.i.mid
    blocks.i.hook_resid_post  blocks.i
    blocks.i.hook_attn_out    blocks.i.attn
    blocks.i.hook_mlp_out     blocks.i.mlp
    blocks.i.attn.hook_q      blocks.i.attn.q, likewise k and v; of a model with rotary positions
                              hook_rot_q and hook_rot_k, for ours are those after rotation
    blocks.i.attn.hook_pattern   blocks.i.attn.weights
    blocks.i.attn.hook_z      blocks.i.attn.out
    blocks.i.mlp.hook_pre     blocks.i.mlp.up
    blocks.i.mlp.hook_post    what blocks.i.mlp.down is given

There is none for scores before the softmax (hook_attn_scores), single heads after the projection
(hook_result), and the parts of a norm (hook_scale, hook_normalized).
"""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

INPUT = "<input>"  # what a module is given, as if it were one of its taps
OUTPUT = "<output>"  # what it returns


class Counterpart(NamedTuple):
    module: str  # path
    tap: str  # one of the module's taps, INPUT or OUTPUT
    heads_last: bool = False  # [B, T, H, D] there, [B, H, T, D] here


def counterparts(model: nn.Module) -> Iterator[tuple[str, Counterpart]]:
    """Those that this model has."""
    modules = dict(model.named_modules())

    def having(path: str, name: str, counterpart: Counterpart) -> Iterator[tuple[str, Counterpart]]:
        module = modules.get(counterpart.module)
        taps = (INPUT, OUTPUT, *getattr(module, "taps", ()))
        if module is not None and counterpart.tap in taps:
            yield f"{path}{name}", counterpart

    yield from having("", "hook_embed", Counterpart("embed", "token"))
    for index, block in enumerate(getattr(model, "blocks", ())):
        path = f"blocks.{index}"
        for name, counterpart in _of_block(path, block):
            yield from having(f"{path}.", name, counterpart)


def _of_block(path: str, block: nn.Module) -> Iterator[tuple[str, Counterpart]]:
    if getattr(block, "residual", True):  # a layer of an LSTM has no residual stream
        yield "hook_resid_pre", Counterpart(path, INPUT)
        yield "hook_resid_mid", Counterpart(path, "mid")
        yield "hook_resid_post", Counterpart(path, OUTPUT)
    yield "hook_attn_out", Counterpart(f"{path}.attn", OUTPUT)
    yield "hook_mlp_out", Counterpart(f"{path}.mlp", OUTPUT)
    rotary = getattr(getattr(block, "attn", None), "rotary", None) is not None
    names = ("rot_q", "rot_k", "v") if rotary else ("q", "k", "v")
    for name, tap in zip(names, "qkv", strict=True):
        yield f"attn.hook_{name}", Counterpart(f"{path}.attn", tap, heads_last=True)
    yield "attn.hook_pattern", Counterpart(f"{path}.attn", "weights")
    yield "attn.hook_z", Counterpart(f"{path}.attn", "out", heads_last=True)
    yield "mlp.hook_pre", Counterpart(f"{path}.mlp.up", OUTPUT)
    yield "mlp.hook_post", Counterpart(f"{path}.mlp.down", INPUT)
