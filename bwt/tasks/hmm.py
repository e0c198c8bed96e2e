"""HMM filtering: the parameters are shown first, then observations; infer the hidden state."""

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from bwt import ops
from bwt.options import option
from bwt.tasks._base import Addresses, Batch, Task, memorisation, uniform

GRID = 100  # probability tokens are multiples of 1 / GRID
MEMORIES = (0, 1, 2, 5, 10)
SPECIALS = ("transition", "emission", "separator", "observation")

Shown = tuple[Tensor, Tensor | None]  # tokens and features


@dataclasses.dataclass(frozen=True)
class HMM(Task):
    """Every sequence has its own HMM with S states and V symbols, uniform initial distribution and
    rows of transition T and emission E drawn from Dirichlet(1), and shows them before the
    observations:

    - header="rows": as S + V + 1 continuous positions of width S, namely the rows of T, the
      columns of E and the initial distribution; a token is an observation.
    - header="tokens": as probabilities rounded to 0.01 so that rows sum to 1,
      [transition] S*S probabilities [emission] S*V probabilities [separator], then for each
      observation [observation] symbol.

    At each observed symbol the hidden state of that time is asked for (predict="state"), or the
    next symbol (predict="symbol"). The posterior belongs to the parameters as shown: observations
    are drawn from the rounded ones.

    With `missing` > 0, each symbol is replaced with that probability by a token that says only that
    it is missing; what is asked stays the same. There the belief is transported and nothing else.
    """

    name: ClassVar[str] = "hmm"
    length_option: ClassVar[str] = "length"
    meanings: ClassVar[dict[str, str]] = {
        "self": "the current observation",
        "matching": "the header's emission probabilities of the symbol, if it is not missing",
        "transition": "the header's transition probabilities",
        "previous": "the observation before",
        "older": "observations before that one",
        "irrelevant": "the rest of the header",
    }

    num_states: int = option(5, "hidden states S", minimum=1, maximum=128)
    num_symbols: int = option(5, "observable symbols V", minimum=2, maximum=4096)
    length: int = option(20, "observations in a sequence", minimum=1)
    header: str = option(
        "rows",
        "show the parameters as continuous rows or as probability tokens",
        choices=("rows", "tokens"),
    )
    floor: float = option(
        0.0, "smallest probability in T and E (the paper's code: 0.05)", minimum=0, maximum=1
    )
    stickiness: float = option(
        0.0, "weight of staying in the state, mixed into T; memory matters", minimum=0, maximum=1
    )
    predict: str = option("state", "what is asked for", choices=("state", "symbol"))
    missing: float = option(
        0.0, "probability that an observation is not shown", minimum=0, maximum=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        widest = max(self.num_states, self.num_symbols)
        if self.floor * widest > 1:
            self._fail(f"floor must be at most 1/{widest} for rows of {widest}, got {self.floor}")
        if self.header == "tokens" and abs(self._floor_units - self.floor * GRID) > 1e-6:
            self._fail(
                f"floor must be a multiple of {1 / GRID} with header=tokens, got {self.floor}"
            )

    @property
    def _floor_units(self) -> int:
        return round(self.floor * GRID)

    @property
    def _num_levels(self) -> int:
        """Distinct probability tokens, from the floor to 1."""
        return GRID - self._floor_units + 1

    @property
    def _header_len(self) -> int:
        if self.header == "rows":
            return self.num_features
        return 3 + self.num_states * (self.num_states + self.num_symbols)

    @property
    def vocab_size(self) -> int:
        return self._first_symbol + self.num_symbols

    @property
    def _first_symbol(self) -> int:
        """Token of symbol 0. The one of a missing symbol, if any can be, is just before it."""
        before = 0 if self.header == "rows" else self._num_levels + len(SPECIALS)
        return before + (self.missing > 0)

    @property
    def num_outcomes(self) -> int:
        return self.num_states if self.predict == "state" else self.num_symbols

    @property
    def num_features(self) -> int:
        return self.num_states + self.num_symbols + 1 if self.header == "rows" else 0

    @property
    def feature_width(self) -> int:
        return self.num_states if self.header == "rows" else 0

    @property
    def seq_len(self) -> int:
        return self._header_len + self.length * (1 if self.header == "rows" else 2)

    def positions_on(self, device: torch.device | str) -> Tensor:
        if self.header == "rows":
            return torch.arange(self._header_len, self.seq_len, device=device)
        return torch.arange(self._header_len + 1, self.seq_len, 2, device=device)

    @property
    def hypothesis_bits(self) -> float:
        """Lower bound: the HMMs on a grid of 0.01, which differ visibly."""
        S, V, least = self.num_states, self.num_symbols, math.ceil(self.floor * GRID - 1e-6)

        def rows(n: int, units: int) -> float:
            spare = max(units - n * least, 0)
            return S * math.log2(math.comb(spare + n - 1, n - 1))

        return rows(S, math.floor(GRID * (1 - self.stickiness) + 1e-6)) + rows(V, GRID)

    def describe(self) -> str:
        return (
            f"Each sequence draws its own HMM with {self.num_states} states and "
            f"{self.num_symbols} symbols. Those whose probabilities are multiples of 0.01 alone "
            f"are 2^{self.hypothesis_bits:.1f}. {memorisation(self.hypothesis_bits, 'HMM')}."
        )

    def groups(self, batch: Batch, time: Tensor) -> dict[str, Tensor]:
        S, V = self.num_states, self.num_symbols
        if self.header == "rows":
            transition, symbol = time < S, torch.where((time >= S) & (time < S + V), time - S, -1)
            stride = 1
        else:
            start = 2 + S * S
            transition = (time >= 1) & (time <= S * S)
            inside = (time >= start) & (time < start + S * V)
            symbol, stride = torch.where(inside, (time - start) % V, -1), 2
        back = batch.positions[:, None] - time  # [P, T]
        body = time >= self._header_len
        shown = self.shown(batch)[..., None]
        return {
            **super().groups(batch, time),
            "matching": (symbol == shown) & (shown >= 0),
            "transition": transition,
            "previous": (back > 0) & (back <= stride) & body,
            "older": (back > stride) & body,
        }

    @property
    def addresses(self) -> tuple[Addresses, ...]:
        """The header: the place decides, whatever probability stands there."""
        why = "each observation needs its own part of the header"
        return (Addresses("header", torch.arange(self._header_len), None, True, why),)

    def shown(self, batch: Batch) -> Tensor:
        """The observations, -1 where they are missing."""
        return self.parameters(batch)[0]

    def spelled(self, batch: Batch) -> list[list[str]]:
        """With rows in the header: T and the number of the state, E and that of the symbol, π."""
        if self.header != "rows":
            return super().spelled(batch)
        transition = [f"T{i}" for i in range(self.num_states)]
        emission = [f"E{i}" for i in range(self.num_symbols)]
        header = [*transition, *emission, "π"]
        return [
            header + ["?" if symbol < 0 else str(symbol) for symbol in row]
            for row in self.shown(batch).tolist()
        ]

    def draw(self, batch_size: int, generator: torch.Generator, device: torch.device) -> Batch:
        S, V = self.num_states, self.num_symbols
        transition = self._rows(batch_size, S, generator, device)
        if self.stickiness > 0:
            identity = torch.eye(S, dtype=transition.dtype, device=device)
            transition = torch.lerp(transition, identity, self.stickiness)
        transition = self._shown(transition)
        emission = self._shown(self._rows(batch_size, V, generator, device))
        return self._observed(transition, emission, generator)

    def redrawn(self, batch: Batch, *, generator: torch.Generator) -> Batch:
        """Other observations of the same HMMs, without a posterior."""
        _, _, transition, emission = self.parameters(batch)
        return self._observed(transition, emission, generator)

    def _observed(self, transition: Tensor, emission: Tensor, generator: torch.Generator) -> Batch:
        """States and symbols of HMMs."""
        batch_size, _, V = emission.shape
        device = emission.device
        # One step more than is shown: the last target of predict="symbol".
        steps = self.length + 1
        states = draw_states(
            transition, uniform(batch_size, steps, generator=generator, device=device)
        )
        own = emission.gather(1, states[..., None].expand(-1, -1, V))  # [B, steps, V]
        noise = uniform(batch_size, steps, generator=generator, device=device)
        symbols = draw_outcomes(own, noise)
        targets = states[:, :-1] if self.predict == "state" else symbols[:, 1:]
        encode = self._as_rows if self.header == "rows" else self._as_tokens
        shown = symbols[:, :-1]
        if self.missing > 0:
            hide = uniform(batch_size, self.length, generator=generator, device=device)
            shown = shown.masked_fill(hide < self.missing, -1)
        tokens, features = encode(transition, emission, shown)
        return Batch(tokens, features, self.positions_on(device), targets, None)

    def _rows(
        self, batch_size: int, width: int, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        """[B, S, width] from Dirichlet(1): normalised exponentials."""
        weights = torch.empty(
            batch_size, self.num_states, width, dtype=torch.float64, device=device
        )
        weights.exponential_(generator=generator)
        return weights / weights.sum(-1, keepdim=True)

    def _shown(self, rows: Tensor) -> Tensor:
        """Rows with the floor respected and rounded to what the header can express, in float32."""
        if self.floor > 0:
            above = (rows - self.floor).clamp_min(0)
            spare = 1 - rows.shape[-1] * self.floor
            total = above.sum(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
            rows = self.floor + above * (spare / total)
        return on_grid(rows, self._floor_units) if self.header == "tokens" else rows.float()

    def _as_rows(self, transition: Tensor, emission: Tensor, symbols: Tensor) -> Shown:
        initial = transition.new_full((len(symbols), 1, self.num_states), 1 / self.num_states)
        header = torch.cat((transition, emission.transpose(1, 2), initial), 1)
        return symbols + self._first_symbol, header

    def _as_tokens(self, transition: Tensor, emission: Tensor, symbols: Tensor) -> Shown:
        def level(rows: Tensor) -> Tensor:
            return (rows * GRID).round().long().flatten(1) - self._floor_units

        batch_size, device = len(symbols), symbols.device
        special = torch.arange(len(SPECIALS), device=device) + self._num_levels
        start, middle, end, mark = special.expand(batch_size, -1).split(1, -1)
        shown = symbols + self._first_symbol
        body = torch.stack((mark.expand_as(shown), shown), -1).flatten(1)
        return torch.cat((start, level(transition), middle, level(emission), end, body), 1), None

    def parameters(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Observations [B, T] (-1: missing), initial [B, S], transition [B, S, S], emission
        [B, S, V], read from what the batch shows."""
        S, V = self.num_states, self.num_symbols
        if self.header == "rows":
            if batch.features is None:
                self._fail("the batch has no features, in which a header of rows is shown")
            transition, emission, initial = batch.features.split((S, V, 1), 1)
            observations = batch.tokens - self._first_symbol
            return observations, initial[:, 0], transition, emission.transpose(1, 2)
        level = (batch.tokens[:, : self._header_len] + self._floor_units).float() / GRID
        transition = level[:, 1 : 1 + S * S].view(-1, S, S)
        emission = level[:, 2 + S * S : -1].view(-1, S, V)
        initial = transition.new_full((len(level), S), 1 / S)
        observations = batch.tokens[:, self._header_len + 1 :: 2] - self._first_symbol
        return observations, initial, transition, emission

    def posterior(self, batch: Batch, *, check: bool = True) -> Tensor:
        observations, initial, transition, emission = self.parameters(batch)
        found = ops.hmm_filter(
            observations, initial, transition, emission.contiguous(), check=check
        )
        return self._outcome(found.filtered, transition, emission)

    def _outcome(self, states: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
        return states if self.predict == "state" else states @ transition @ emission

    def floors(self, batch: Batch) -> dict[str, Tensor]:
        """`memory-k`: the exact filter that sees the header and only the last k observations (the
        missing among them), all k below the length. Its prior is the marginal of the time before
        its first observation."""
        observations, initial, transition, emission = self.parameters(batch)
        marginal = marginals(initial, transition, self.length)
        floors = {}
        for k in (k for k in MEMORIES if k < self.length):
            states = last_k_filter(observations, marginal, transition, emission, k)
            floors[f"memory-{k}"] = self._outcome(states, transition, emission)
        return floors


def draw_outcomes(rows: Tensor, noise: Tensor) -> Tensor:
    """One outcome of each distribution [..., O] by inversion of uniform noise [...]."""
    cumulative = rows.double().cumsum(-1)
    return (noise[..., None] * cumulative[..., -1:] >= cumulative[..., :-1]).sum(-1)


def draw_states(transition: Tensor, noise: Tensor) -> Tensor:
    """A path [B, T] through transition [B, S, S] from a uniform start, given uniform noise [B, T].

    The noise of a time fixes the next state for every state: a map. Prefixes of their composition
    come from doubling, log2(T) gathers instead of T.
    """
    S, steps = transition.shape[-1], noise.shape[1]
    maps = draw_outcomes(transition[:, None], noise[..., None].expand(-1, -1, S))  # [B, T, S]
    maps[:, 0] = (noise[:, :1] * S).long().clamp_max(S - 1)
    reach = 1
    while reach < steps:
        composed = maps[:, reach:].gather(2, maps[:, :-reach])
        maps = torch.cat((maps[:, :reach], composed), 1)
        reach *= 2
    return maps[..., 0]


def on_grid(rows: Tensor, least: int) -> Tensor:
    """Rows [..., n] of sum 1 and entries >= least / GRID, rounded to multiples of 1 / GRID that
    still sum to 1 (by largest remainders) in float32."""
    units = (rows * GRID - least).clamp_min(0)
    whole = units.floor()
    missing = GRID - rows.shape[-1] * least - whole.sum(-1, keepdim=True)
    rank = (units - whole).argsort(-1, descending=True).argsort(-1)
    return (whole + (rank < missing) + least).float() / GRID


def marginals(initial: Tensor, transition: Tensor, steps: int) -> Tensor:
    """[B, T, S] p(z_t) without observations."""
    rows = [initial]
    for _ in range(steps - 1):
        rows.append((rows[-1][:, None] @ transition)[:, 0])
    return torch.stack(rows, 1)


def last_k_filter(
    observations: Tensor, marginal: Tensor, transition: Tensor, emission: Tensor, k: int
) -> Tensor:
    """[B, T, S] p(z_t | y_{t-k+1} .. y_t): every window is a sequence of its own."""
    if k == 0:
        return marginal
    (batch, steps), S = observations.shape, transition.shape[-1]
    time = torch.arange(steps, device=observations.device)
    start = (time - k + 1).clamp_min(0)
    inside = (start[:, None] + torch.arange(k, device=time.device)).clamp_max(steps - 1)  # [T, k]

    def per_window(x: Tensor) -> Tensor:
        return x[:, None].expand(-1, steps, *x.shape[1:]).flatten(0, 1)

    lengths = (time - start + 1).repeat(batch)
    filtered = ops.hmm_filter(
        observations[:, inside].flatten(0, 1),
        marginal[:, start].flatten(0, 1),
        per_window(transition),
        per_window(emission),
        lengths=lengths,
    ).filtered
    last = (lengths - 1)[:, None, None].expand(-1, 1, S)
    return filtered.gather(1, last).view(batch, steps, S)
