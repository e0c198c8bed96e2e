"""Forward filtering of hidden Markov models: launchers.

    u_t = predicted_t * emission[:, y_t],  c_t = sum u_t,  filtered_t = u_t / c_t
    predicted_0 = initial,  predicted_{t+1} = filtered_t transition,  log_likelihood = sum log c_t
    adjoints, a = grad_filtered_t + transition predicted'_{t+1}:
        g = a - sum(a filtered_t) + grad_log_likelihood
        predicted'_t = grad_predicted_t + g emission[:, y_t] / c_t

Layouts: observations [B, T] (-1 is missing, its factor 1), initial [S] or [B, S], transition [S, S]
or [B, S, S] (row = from-state), emission [S, V] or [B, S, V], lengths [B] or None; filtered,
predicted [B, T, S], log_likelihood [B]. After an impossible observation (c_t = 0) filtered and
later predicted are 0, log_likelihood is -inf and the sequence has no gradient. Sequences whose
probabilities leave the range of floats are done again (exact.py), without asking the host.

Three ways lead there, all of them without atomics, so that equal calls have equal results:
    rows    a program holds few sequences and their matrices in registers; T steps of S^2
            multiply-adds for each sequence, one after another.
    dot     transition is shared and S > 16: 16 sequences a program, tiles of exact products.
    chunks  few long sequences, S <= 16, cut into N = sqrt(2 T) pieces of L = T / N steps.
            (1) Each piece is filtered from every state: S rows, T S^3 multiply-adds in all.
            (2) A scan over the N pieces of a sequence, N S^2, finds where they truly start.
            (3) They are filtered from there, T S^2. So S + 1 times the work of `rows`, in
            2 L + N instead of T steps after each other: for T = 100000, 895 of them. Gradients
            likewise, with S + 1 rows for each piece in (1), as the adjoint is an affine map.
"""

from itertools import islice
from typing import NamedTuple

import torch
import triton

from .. import launching, results
from ..configs import Config, Launch, architecture, lookup
from .backward import hmm_filter_backward_kernel, hmm_filter_ends_kernel
from .exact import hmm_filter_exact_kernel
from .forward import hmm_filter_forward_kernel, hmm_filter_starts_kernel
from .paths import SMALL_STATES, Plan, plan

OP = "hmm_filter"
SUMMED_SYMBOLS = 32  # up to here gradients of emission are summed in registers
SMALL = {torch.float32: 2.0**-40, torch.float64: 2.0**-400}  # as in steps.py
MODES = {torch.float32: "fp32", torch.float64: "fp64"}


def hmm_filter_forward(observations, initial, transition, emission, lengths=None, *, path=None):
    """(filtered, predicted, log_likelihood), in the dtype of emission."""
    model = Model.of(observations, initial, transition, emission, lengths, path)
    filtered, predicted, log_likelihood = results.hmm_filter(observations, initial)
    if observations.numel() == 0:
        return filtered, predicted, log_likelihood.zero_()
    parts = emission.new_empty((len(observations), model.plan.chunks), dtype=torch.float64)
    model.run_forward(filtered, predicted, parts)
    return filtered, predicted, parts.sum(1).to(emission.dtype)


def hmm_filter_backward(
    grad_filtered,
    grad_predicted,
    grad_log_likelihood,
    observations,
    initial,
    transition,
    emission,
    lengths,
    filtered,
    predicted,
    log_likelihood,
    *,
    path=None,
    exact=None,
):
    """(grad_initial, grad_transition, grad_emission), summed over the batch where parameters are
    shared. Incoming gradients may be None.

    exact(marks [B]) gives the same for sequences that turn out to be delicate, which are then left
    out here; to see whether there are any, the host waits. Without it they are not looked for.
    """
    incoming = (grad_filtered, grad_predicted, grad_log_likelihood)
    if observations.numel() == 0 or all(x is None for x in incoming):
        return tuple(x.zero_() for x in results.dense(initial, transition, emission))
    model = Model.of(observations, initial, transition, emission, lengths, path)
    saved = tuple(x.contiguous() for x in (filtered, predicted, log_likelihood))
    incoming = tuple(x if x is None else x.to(emission.dtype).contiguous() for x in incoming)
    gradients, delicate = model.run_backward(incoming, saved)
    if exact is None:
        return gradients
    small = (transition > 0) & (transition < SMALL[emission.dtype])
    delicate = (delicate > 0) | (small.flatten(-2).any(-1) & (log_likelihood > -torch.inf))
    if not delicate.any():
        return gradients
    whole = model.observations.new_full(delicate.shape, model.sizes[1])
    lengths = torch.where(delicate, 0, whole if lengths is None else lengths)
    gradients, _ = model._replace(lengths=lengths).run_backward(incoming, saved)
    most = torch.finfo(emission.dtype).max
    pairs = zip(gradients, exact(delicate), strict=True)
    return tuple((one + two).clamp(-most, most) for one, two in pairs)


class Sums(NamedTuple):
    """What the backward kernels leave behind; see hmm_filter_backward_kernel."""

    outgoing: torch.Tensor
    adjoint: torch.Tensor | None
    weights: torch.Tensor | None
    grad_transition: torch.Tensor | None
    grad_emission: torch.Tensor | None


class Model(NamedTuple):
    """The contiguous arguments of a call and the way it goes."""

    observations: torch.Tensor
    initial: torch.Tensor
    transition: torch.Tensor
    emission: torch.Tensor
    lengths: torch.Tensor | None
    plan: Plan

    @classmethod
    def of(cls, observations, initial, transition, emission, lengths, path):
        (B, T), S = observations.shape, emission.shape[-2]
        way = plan(B, T, S, transition.ndim == 3, path)
        parameters = (x.contiguous() for x in (observations, initial, transition, emission))
        return cls(*parameters, None if lengths is None else lengths.contiguous(), way)

    @property
    def sizes(self):
        return *self.observations.shape, *self.emission.shape[-2:]

    @property
    def padded(self) -> int:
        return max(4, triton.next_power_of_2(self.emission.shape[-2]))

    def config(self, kernel: str, arch: str) -> Config:
        if kernel in ("forward", "backward"):
            kernel = f"dot_{kernel}" if self.plan.path == "dot" else f"rows_{kernel}"
        return lookup(OP, kernel, MODES[self.emission.dtype], self.padded, arch)[0]

    def common(self) -> dict:
        _, T, S, V = self.sizes
        return {
            "observations": self.observations,
            "lengths": self.lengths,
            "transition": self.transition,
            "emission": self.emission,
            "T": T,
            "V": V,
            "chunk": self.plan.chunk,
            "chunks": self.plan.chunks,
            "transition_stride": S * S if self.transition.ndim == 3 else 0,
            "emission_stride": S * V if self.emission.ndim == 3 else 0,
            "HAS_LENGTHS": self.lengths is not None,
            "DOT": self.plan.path == "dot",
            "S": S,
            "SP": self.padded,
        }

    def new_marks(self):
        """[B] int32: sequences that turn out to be delicate will be set."""
        return self.emission.new_zeros(self.sizes[:1], dtype=torch.int32)

    def run_forward(self, filtered, predicted, parts) -> None:
        def launches(*tensors):
            outputs = tensors[len(inputs) :]
            model = Model(*tensors[: len(inputs)], way)
            return model.forward_launches(*outputs, architecture(parts.device))

        *inputs, way = self
        outputs = (filtered, predicted, parts, self.new_marks())
        launching.run(("hmm_filter_forward", way), inputs, outputs, launches)

    def forward_launches(self, filtered, predicted, parts, delicate, arch) -> list[Launch]:
        """What hmm_filter_forward runs; parts [B, chunks] are log-likelihoods of pieces."""
        B, _, S, _ = self.sizes
        chunks = self.plan.chunks
        config = self.config("forward", arch)
        initial, stride = self.initial, S if self.initial.ndim == 2 else 0
        launches = []
        if self.plan.path == "chunks":
            final = self.emission.new_empty((B, chunks, S, S))
            logs = parts.new_empty((B, chunks, S))
            starts = self.emission.new_empty((B, chunks, S))
            arguments = self.common() | {"initial": None, "initial_stride": 0, "BASIS": True}
            arguments |= {"filtered": None, "predicted": None, "final": final}
            arguments |= {"log_likelihood": logs, "rows": B * chunks * S}
            grid = triton.cdiv(B * chunks * S, config.tiles["BB"])
            arguments |= {"delicate": delicate}
            launches.append(Launch(hmm_filter_forward_kernel, grid, arguments, config))
            scan = {"initial": initial, "initial_stride": stride, "chunks": chunks}
            scan |= {"final": final, "log_likelihood": logs, "starts": starts}
            scan |= {"delicate": delicate, "S": S, "SP": self.padded}
            one = self.config("starts", arch)
            launches.append(Launch(hmm_filter_starts_kernel, B, scan, one))
            initial, stride = starts, S
        arguments = self.common() | {"initial": initial, "initial_stride": stride, "BASIS": False}
        arguments |= {"filtered": filtered, "predicted": predicted, "final": None}
        arguments |= {"log_likelihood": parts, "rows": B * chunks, "delicate": delicate}
        grid = triton.cdiv(B * chunks, config.tiles["BB"])
        launches.append(Launch(hmm_filter_forward_kernel, grid, arguments, config))
        return [*launches, self._exact(filtered, predicted, parts, delicate)]

    def _exact(self, filtered, predicted, parts, delicate) -> Launch:
        """What is delicate, again; the others take next to no time."""
        S = self.sizes[2]
        dropped = ("chunk", "DOT")
        arguments = {name: x for name, x in self.common().items() if name not in dropped}
        arguments |= {"initial": self.initial, "initial_stride": S * (self.initial.ndim - 1)}
        arguments |= {"filtered": filtered, "predicted": predicted, "log_likelihood": parts}
        arguments |= {"delicate": delicate}
        config = Config({"BK": min(16, self.padded)}, max(1, self.padded // 32), 1)
        return Launch(hmm_filter_exact_kernel, self.sizes[0], arguments, config)

    def run_backward(self, incoming, saved):
        """The gradients, and marks of sequences that turned out to be delicate."""

        def launches(*tensors):
            tensors = iter(tensors)
            model = Model(*islice(tensors, len(arguments)), way)
            given = [tuple(islice(tensors, len(some))) for some in (incoming, saved)]
            return model.backward_launches(*given, Sums(*islice(tensors, 5)), *tensors, arch)

        *arguments, way = self
        arch, delicate = architecture(self.emission.device), self.new_marks()
        sums = self.empty_sums(arch)
        inputs, outputs = (*arguments, *incoming, *saved), (*sums, delicate)
        launching.run(("hmm_filter_backward", way), inputs, outputs, launches)
        return self.gradients(saved[0], sums), delicate

    def empty_sums(self, arch) -> Sums:
        B, T, S, V = self.sizes
        rows = B * self.plan.chunks
        programs = triton.cdiv(rows, self.config("backward", arch).tiles["BB"])
        new, small = self.emission.new_empty, S <= SMALL_STATES
        own_transition, own_emission = (x.ndim == 3 for x in (self.transition, self.emission))
        summed = small and V <= SUMMED_SYMBOLS
        return Sums(
            new((rows, S)),
            None if small else new((B, T, S)),
            None if summed else new((B, T, S)),
            new((rows if own_transition else programs, S, S)) if small else None,
            new((rows if own_emission else programs, S, V)) if summed else None,
        )

    def backward_launches(self, incoming, saved, sums: Sums, delicate, arch) -> list[Launch]:
        """What hmm_filter_backward runs."""
        B, _, S, V = self.sizes
        chunks = self.plan.chunks
        config = self.config("backward", arch)
        names = ("filtered", "predicted", "log_likelihood")
        common = self.common() | dict(zip(names, saved, strict=True))
        for name, gradient in zip(names, incoming, strict=True):
            common |= {f"grad_{name}": gradient, f"HAS_GRAD_{name.upper()}": gradient is not None}
        common |= {"OWN_TRANSITION": self.transition.ndim == 3}
        common |= {"OWN_EMISSION": self.emission.ndim == 3, "delicate": delicate}
        ends, launches = None, []
        if self.plan.path == "chunks":
            maps = self.emission.new_empty((B, chunks, S + 1, S))
            ends = self.emission.new_empty((B, chunks, S))
            rows = B * chunks * (S + 1)
            arguments = common | Sums(maps, None, None, None, None)._asdict()
            arguments |= {"incoming": None, "HAS_INCOMING": False, "BASIS": True, "rows": rows}
            arguments |= {"SUM_TRANSITION": False, "SUM_EMISSION": False, "BV": 1}
            grid = triton.cdiv(rows, config.tiles["BB"])
            launches.append(Launch(hmm_filter_backward_kernel, grid, arguments, config))
            scan = {"outgoing": maps, "ends": ends, "chunks": chunks, "S": S, "SP": self.padded}
            one = self.config("ends", arch)
            launches.append(Launch(hmm_filter_ends_kernel, B, scan, one))
        summed = sums.grad_emission is not None
        arguments = common | sums._asdict() | {"incoming": ends, "HAS_INCOMING": ends is not None}
        arguments |= {"BASIS": False, "SUM_TRANSITION": sums.grad_transition is not None}
        arguments |= {"SUM_EMISSION": summed, "BV": triton.next_power_of_2(V) if summed else 1}
        arguments |= {"rows": B * chunks}
        grid = triton.cdiv(B * chunks, config.tiles["BB"])
        return [*launches, Launch(hmm_filter_backward_kernel, grid, arguments, config)]

    def gradients(self, filtered, sums: Sums):
        """What is left to add up; torch's sums and products are deterministic."""
        B, T, S, V = self.sizes
        chunks = self.plan.chunks
        initial = sums.outgoing.view(B, chunks, S)[:, 0]
        if sums.grad_transition is None:
            left, right = filtered[:, :-1], sums.adjoint[:, 1:]
            if self.transition.ndim == 2:
                left, right = left.reshape(-1, S), right.reshape(-1, S)
            transition = left.mT @ right
        elif self.transition.ndim == 3:
            transition = _sum(sums.grad_transition.view(B, chunks, S, S), 1)
        else:
            transition = _sum(sums.grad_transition, 0)
        if sums.grad_emission is None:
            emission = self._emission_of(sums.weights)
        elif self.emission.ndim == 3:
            emission = _sum(sums.grad_emission.view(B, chunks, S, V), 1)
        else:
            emission = _sum(sums.grad_emission, 0)
        initial = initial.contiguous() if self.initial.ndim == 2 else _sum(initial, 0)
        return initial, transition, emission

    def _emission_of(self, weights):
        """Weights [B, T, S] added up by symbol; missing ones go to a row that is dropped."""
        B, T, S, V = self.sizes
        count = B if self.emission.ndim == 3 else 1
        symbols = self.observations.long()
        symbols = torch.where((symbols < 0) | (symbols >= V), V, symbols)
        if count > 1:
            symbols = symbols + (V + 1) * torch.arange(B, device=symbols.device)[:, None]
        table = weights.new_zeros((count * (V + 1), S))
        # Unlike index_add, this sorts on a GPU and has no atomics.
        table.index_put_((symbols.flatten(),), weights.view(-1, S), accumulate=True)
        table = table.view(count, V + 1, S)[:, :V].mT
        return table.contiguous().view(self.emission.shape)


def _sum(x, dim):
    """In float64, whatever the number of terms."""
    return x.squeeze(dim) if x.shape[dim] == 1 else x.sum(dim, dtype=torch.float64).to(x.dtype)


def label(launch: Launch) -> str:
    """The kernel's name, made unique within a call."""
    return launch.name + ("_basis" if launch.arguments.get("BASIS") else "")


def example_launches(
    *,
    mode,
    batch,
    steps,
    states,
    symbols,
    arch,
    own=(True, True, True),
    lengths=True,
    wide=True,
    path=None,
    incoming=("filtered", "predicted", "log_likelihood"),
) -> dict[str, Launch]:
    """The launches of one call by label, on tensors without memory.

    own: which of initial, transition and emission are given for each sequence; wide: int64 symbols.
    """
    dtype = {name: dtype for dtype, name in MODES.items()}[mode]
    initial, transition, emission = ((batch,) if each else () for each in own)

    def empty(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    saved = (empty(batch, steps, states), empty(batch, steps, states), empty(batch))
    model = Model.of(
        empty(batch, steps, dtype=torch.int64 if wide else torch.int32),
        empty(*initial, states),
        empty(*transition, states, states),
        empty(*emission, states, symbols),
        empty(batch, dtype=torch.int64) if lengths else None,
        path,
    )
    parts = empty(batch, model.plan.chunks, dtype=torch.float64)
    launches = model.forward_launches(saved[0], saved[1], parts, model.new_marks(), arch)
    names = ("filtered", "predicted", "log_likelihood")
    gradients = [x if n in incoming else None for n, x in zip(names, saved, strict=True)]
    sums, marks = model.empty_sums(arch), model.new_marks()
    launches += model.backward_launches(gradients, saved, sums, marks, arch)
    return {label(launch): launch for launch in launches}


# (path, states, symbols, own parameters): at least one for each entry of the table.
FORMS = [
    ("rows", 3, 4, True),
    ("rows", 5, 5, True),
    ("rows", 5, 5, False),
    ("rows", 8, 32, True),
    ("rows", 8, 512, False),
    ("rows", 16, 16, True),
    ("rows", 16, 27, False),
    ("rows", 20, 50, True),
    ("rows", 64, 64, True),
    ("rows", 64, 64, False),
    ("rows", 128, 512, True),
    ("dot", 20, 50, False),
    ("dot", 64, 64, False),
    ("dot", 128, 512, False),
    ("chunks", 2, 4, False),
    ("chunks", 5, 5, True),
    ("chunks", 16, 32, False),
]


def specialisations(arch: str):
    """(name, launch) of every form."""
    for mode in MODES.values():
        for path, states, symbols, own in FORMS:
            sizes = {"states": states, "symbols": symbols, "batch": 64, "steps": 4096}
            launches = example_launches(mode=mode, arch=arch, own=(own,) * 3, path=path, **sizes)
            owner = "own" if own else "shared"
            for name, launch in launches.items():
                yield f"{name}.{path}.{mode}.S{states}.V{symbols}.{owner}", launch
