"""What the models share: sizes, norms, the input embedding, the head."""

import math
from typing import ClassVar, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bwt import ops
from bwt.kernels.contracts import WIDE
from bwt.taps import Tapped

EPSILON = 1e-6


class Shape(NamedTuple):
    vocab_size: int
    num_outcomes: int
    seq_len: int  # features included
    feature_width: int
    num_features: int


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, epsilon=EPSILON)


class LayerNorm(nn.Module):
    """Without parameters: the linear map that follows can scale as well."""

    def __init__(self, width: int):
        super().__init__()
        self.shape = (width,)

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.shape, eps=EPSILON)


NORMS = {"rms": RMSNorm, "layer": LayerNorm}


def in_passes(x: Tensor) -> bool:
    """Whether what lies between two products is best done in one pass by the ops of a CPU. GPUs add
    a bias within the product, torch.compile fuses by itself, and autocast mixes dtypes."""
    return (
        not torch.compiler.is_compiling()
        and x.is_cpu
        and x.dtype in WIDE
        and not torch.is_autocast_enabled("cpu")
    )


def watched(*modules: nn.Module) -> bool:
    """Whether somebody looks at what one of them is given or returns, or changes it: then it has to
    be called."""
    return any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in modules
    )


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None and in_passes(x):
            return ops.add_bias(functional.linear(x, self.weight), self.bias)
        return functional.linear(x, self.weight, self.bias)


def linear(inputs: int, outputs: int, *, bias: bool = True, gain: float = 1.0) -> Linear:
    layer = Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def shifted(x: Tensor, mix: Tensor) -> Tensor:
    """x_t + sum_j mix_j * x_{t-j}, for x [B, T, C] and mix [span, C], j = 1 .. span."""
    total = x
    for j, share in enumerate(mix, 1):
        total = total + functional.pad(x[:, :-j] * share, (0, 0, j, 0))
    return total


def shift_mix(width: int, span: int) -> nn.Parameter:
    """Each distance has its own pattern over channels, between 0 and 1, so that the order of the
    positions can be told from the start."""
    channels = torch.linspace(0, 1, width)
    return nn.Parameter(torch.stack([(j * channels) % 1.0 for j in range(1, span + 1)]))


class Embedding(Tapped):
    """Features and tokens -> [B, F + L, width]. Each feature has a place of its own in the header,
    told by a learned vector; tokens get learned positions if asked for, from a table that may be
    longer than the sequences of training. shift: each position also sees so many before it."""

    taps = ("token",)  # [B, L, width], of tokens alone

    def __init__(
        self, shape: Shape, width: int, *, positions: bool, table: int = 0, shift: int = 0
    ):
        super().__init__()
        std = width**-0.5
        self.tokens = nn.Parameter(torch.randn(shape.vocab_size, width) * std)
        self.num_features = shape.num_features
        if shape.num_features:
            self.features = linear(shape.feature_width, width, bias=False)
            self.slots = nn.Parameter(torch.randn(shape.num_features, width) * std)
        size = max(shape.seq_len - shape.num_features, table)
        self.positions = nn.Parameter(torch.randn(size, width) * std) if positions else None
        self.mix = shift_mix(width, shift) if shift else None

    def forward(self, tokens: Tensor, features: Tensor | None) -> Tensor:
        x = self.tap("token", functional.embedding(tokens, self.tokens))
        if self.positions is not None:
            if x.shape[1] > len(self.positions):
                raise ValueError(
                    f"this model has learned {len(self.positions)} token positions and cannot "
                    f"read {x.shape[1]} tokens; to go further, train a transformer with a longer "
                    "position_table, or with positions none or rotary"
                )
            x = x + self.positions[: x.shape[1]]
        if (features is None) != (self.num_features == 0):
            got = "no features" if features is None else f"{features.shape[1]} features"
            raise ValueError(f"this model takes {self.num_features} features, got {got}")
        if features is not None:
            header = self.features(features.to(x.dtype)) + self.slots
            x = torch.cat([header, x], 1)
        return x if self.mix is None else shifted(x, self.mix)


class Residual(NamedTuple):
    """A residual stream, and what the last sublayer adds to it: the sum x + (branch + bias) waits
    for the norm that reads it, which then takes one pass for both."""

    x: Tensor
    branch: Tensor | None = None
    bias: Tensor | None = None

    def total(self) -> Tensor:
        if self.branch is None:
            return self.x
        return self.x + (self.branch if self.bias is None else ops.add_bias(self.branch, self.bias))

    def normed(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """The sum, and what the norm makes of it."""
        if (
            self.branch is None
            or not isinstance(norm, RMSNorm)
            or watched(norm)
            or not in_passes(self.x)
        ):
            x = self.total()
            return x, norm(x)
        return ops.add_rms_norm(self.x, self.branch, norm.weight, self.bias, epsilon=EPSILON)


class Head(nn.Module):
    """Norm, then logits. `tied`: the embeddings of the last num_outcomes tokens are the weights."""

    def __init__(self, shape: Shape, width: int, norm: str, *, tied: bool, scale: float):
        super().__init__()
        if tied and shape.num_outcomes > shape.vocab_size:
            raise ValueError(
                f"a tied head needs a token per outcome: {shape.num_outcomes} outcomes, "
                f"{shape.vocab_size} tokens"
            )
        self.norm = NORMS[norm](width)
        self.outcomes = shape.num_outcomes
        self.scale = scale
        self.weight = None if tied else nn.Parameter(torch.zeros(shape.num_outcomes, width))

    def forward(self, x: Tensor, embedding: Embedding) -> Tensor:
        return self.read(Residual(x), embedding)

    def logits(self, stream: Residual, embedding: Embedding) -> Tensor:
        """As of its sum."""
        if watched(self):
            return self(stream.total(), embedding)
        return self.read(stream, embedding)

    def read(self, stream: Residual, embedding: Embedding) -> Tensor:
        weight = embedding.tokens[-self.outcomes :] if self.weight is None else self.weight
        normed = stream.normed(self.norm)[1]
        # A bfloat16 logit of 8 would be off by up to 2%, and its probability likewise.
        logits = functional.linear(wide(normed), wide(weight))
        return logits if self.scale == 1 else logits * self.scale


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int, gain: float):
        super().__init__()
        self.up = linear(width, hidden)
        self.down = linear(hidden, width, gain=gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activations(x))

    def activations(self, x: Tensor) -> Tensor:
        if watched(self.up) or not in_passes(x):
            return ops.gelu(self.up(x))
        return ops.gelu(functional.linear(x, self.up.weight), self.up.bias)

    def added_to(self, stream: Tensor, x: Tensor) -> Residual:
        """The stream with what comes of x."""
        if watched(self, self.down) or not in_passes(x):
            return Residual(stream, self(x))
        return Residual(
            stream, functional.linear(self.activations(x), self.down.weight), self.down.bias
        )


class Extending(Protocol):
    """A block that adds to a stream without summing it up."""

    def extend(self, stream: Residual, positions: Tensor | None = None) -> Residual: ...


def through(blocks: nn.ModuleList, x: Tensor, positions: Tensor | None = None) -> Residual:
    """What blocks with a method `extend` make of x one after another, the last one at the positions
    only."""
    stream, last = Residual(x), len(blocks) - 1
    for index, block in enumerate(blocks):
        chosen = positions if index == last else None
        if watched(block):
            stream = Residual(block(stream.total(), chosen))
        else:
            stream = cast(Extending, block).extend(stream, chosen)
    return stream


class Model(Tapped):
    """Base of all models.

    A model has to define `options_class`, a frozen dataclass whose fields are made by
    `bwt.options.option` (they become flags of `bwt train`), `__init__(shape, options)` and
    `forward(tokens, features=None, positions=None)`, see bwt/models/__init__.py. What more it may
    have, and what looks at it (without it, that is left out, with the reason):

        embed, blocks   modules: the input [B, T, C], and a ModuleList of layers [B, T, C] ->
                        [B, T, C] that add to it: manifold, probes, dissociation, ablation, splice.
                        `residual = False` in a layer says that its output takes the place of its
                        input
        head(x, embed)  logits of the last states: lens; its `norm`: clusters
        blocks.*.attn   with the taps, the `heads` and the `size` of our attention: keys, attention,
                        formation
        taps            names of values inside that it offers by `self.tap(name, value)`
        width, width_step, SECOND_SIZE, second_size   of the options: to give it as many parameters
                        as a transformer has
    """

    options_class: ClassVar[type]

    @property
    def num_parameters(self) -> int:
        """Those that are not trained are counted, too."""
        return sum(p.numel() for p in self.parameters())


def wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def at(x: Tensor, positions: Tensor | None) -> Tensor:
    """x [B, T, C] at the positions [P] along time."""
    return x if positions is None else x.index_select(1, positions)


def depth_gain(sublayers: int) -> float:
    """Keeps the residual stream at order one however many sublayers add to it."""
    return 1 / math.sqrt(max(1, sublayers))
