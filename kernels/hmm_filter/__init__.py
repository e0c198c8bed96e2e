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

Three ways lead there (paths.py chooses), all of them without atomics, so that equal calls have
equal results:
    rows    whole sequences, T steps of S^2 multiply-adds for each, one after another. With up to 16
            states a lane has a state (few_states.py), with more of them a program has a sequence
            and its matrix in registers (many_states.py).
    dot     transition is shared and S > 16: 16 sequences a program, tiles of exact products.
    chunks  few sequences, S <= 16, cut into N pieces of L = T / N steps.
            (1) Each piece is filtered from every state: S rows, T S^3 multiply-adds in all.
            (2) A scan over the N pieces of a sequence, N S^2, finds where they truly start.
            (3) They are filtered from there, T S^2. So S + 1 times the work of `rows`, in
            2 L + N instead of T steps after each other. Gradients likewise, with S + 1 rows for
            each piece in (1), as the adjoint is an affine map.
The likelihood is left by the kernel that knows it, and nothing is cleared beforehand: a call is two
launches, with pieces four.

Parameters may be halves, which are computed in float32; gradients are of float32 and float64.
"""

from itertools import islice
from typing import NamedTuple

import torch
import triton

from .. import launching, results
from ..configs import MAX_REGISTERS, Config, Launch, architecture, lookup
from ..contracts import HALVES
from . import few_states, few_states_backward, many_states, many_states_backward
from .exact import hmm_filter_exact_kernel
from .paths import FEW_STATES, Plan, plan, processors

OP = "hmm_filter"
# Up to here gradients of emission are summed in registers.
SUMMED_SYMBOLS = {torch.float32: 32, torch.float64: 16}
SMALL = {torch.float32: 2.0**-40, torch.float64: 2.0**-400}  # as in steps.py
MODES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}


def hmm_filter_forward(observations, initial, transition, emission, lengths=None, *, path=None):
    """(filtered, predicted, log_likelihood), in the dtype of emission; log_likelihood of halves is
    float32."""
    model = Model.of(observations, initial, transition, emission, lengths, path)
    outputs = results.hmm_filter(observations, initial)
    if observations.numel() == 0:
        return *outputs[:2], outputs[2].zero_()
    model.run_forward(outputs)
    return outputs


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
    shared. Incoming gradients may be None. Halves are not served: what is saved of them would be
    too coarse.

    exact(marks [B]) gives the same for sequences that turn out to be delicate, which are then left
    out here; to see whether there are any, the host waits. Without it they are not looked for.
    """
    if emission.dtype in HALVES:
        raise ValueError(
            f"hmm_filter: gradients are of float32 and float64 parameters, got {emission.dtype}; "
            "call bwt.ops.hmm_filter, which widens them"
        )
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
    """What the backward kernels leave behind; see the two hmm_filter_backward_kernel."""

    outgoing: torch.Tensor
    adjoint: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    grad_transition: torch.Tensor | None = None
    grad_emission: torch.Tensor | None = None


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
        way = plan(B, T, S, transition.ndim == 3, path, processors(observations.device))
        parameters = (x.contiguous() for x in (observations, initial, transition, emission))
        return cls(*parameters, None if lengths is None else lengths.contiguous(), way)

    @property
    def sizes(self):
        return *self.observations.shape, *self.emission.shape[-2:]

    @property
    def padded(self) -> int:
        return max(4, triton.next_power_of_2(self.emission.shape[-2]))

    @property
    def few(self) -> bool:
        return self.sizes[2] <= FEW_STATES

    def config(self, kernel: str, arch: str) -> Config:
        if kernel in ("forward", "backward"):
            kernel = f"dot_{kernel}" if self.plan.path == "dot" else f"rows_{kernel}"
        mode = "fp64" if self.emission.dtype == torch.float64 else "fp32"  # of the arithmetic
        return lookup(OP, kernel, mode, self.padded, arch)[0]

    def common(self) -> dict:
        _, T, S, V = self.sizes
        return {
            "observations": self.observations,
            "lengths": self.lengths,
            "transition": self.transition,
            "emission": self.emission,
            "T": T,
            "V": V,
            "transition_stride": S * S if self.transition.ndim == 3 else 0,
            "emission_stride": S * V if self.emission.ndim == 3 else 0,
            "HAS_LENGTHS": self.lengths is not None,
            "S": S,
            "SP": self.padded,
        }

    def recursion(self) -> dict:
        """What the kernels of the recursion take besides."""
        if not self.few:
            return self.common() | {"DOT": self.plan.path == "dot"}
        _, chunk, chunks = self.plan
        return self.common() | {"chunk": chunk, "chunks": chunks, "PIECES": chunks > 1}

    def new_marks(self):
        """[B] int32: tells of sequences that turn out to be delicate."""
        return self.emission.new_empty(self.sizes[:1], dtype=torch.int32)

    def run_forward(self, outputs) -> None:
        def launches(*tensors):
            model = Model(*tensors[: len(inputs)], way)
            return model.forward_launches(*tensors[len(inputs) :], architecture(device))

        *inputs, way = self
        device = self.emission.device
        outputs = (*outputs, self.new_marks())
        launching.run(("hmm_filter_forward", way), inputs, outputs, launches)

    def forward_launches(self, filtered, predicted, log_likelihood, delicate, arch) -> list[Launch]:
        """What hmm_filter_forward runs."""
        outputs = {"filtered": filtered, "predicted": predicted}
        outputs |= {"log_likelihood": log_likelihood, "delicate": delicate}
        S = self.sizes[2]
        start = {"initial": self.initial, "initial_stride": S * (self.initial.ndim - 1)}
        exact = self._exact(start | outputs, arch)
        if not self.few:
            config, B = self.config("forward", arch), self.sizes[0]
            arguments = self.recursion() | start | outputs | {"rows": B}
            grid = triton.cdiv(B, config.tiles["BB"])
            kernel = many_states.hmm_filter_forward_kernel
            return [Launch(kernel, grid, arguments, config), exact]
        if self.plan.path != "chunks":
            return [self._few_forward(start | outputs, arch), exact]
        starts, launches = self._starts(start, log_likelihood, delicate, arch)
        start = {"initial": starts, "initial_stride": S}
        return [*launches, self._few_forward(start | outputs, arch), exact]

    def _few_forward(self, outputs, arch, basis=None) -> Launch:
        """Of all pieces from where they start; with `basis`, from every state."""
        (B, T, S, _), (_, chunk, chunks) = self.sizes, self.plan
        config, rows = self.config("forward", arch), B * chunks * (S if basis else 1)
        arguments = self.recursion() | {"final": None, "BASIS": False} | outputs
        arguments |= {"rows": rows, "RAGGED": self.lengths is not None or chunk * chunks != T}
        grid = triton.cdiv(rows, config.tiles["BB"])
        arguments |= basis or {}
        return Launch(few_states.hmm_filter_forward_kernel, grid, arguments, config)

    def _starts(self, start, total, delicate, arch):
        """Where pieces truly start, and the launches that find it."""
        (B, _, S, _), (_, chunk, chunks), new = self.sizes, self.plan, total.new_empty
        final, starts = new((B, chunks, S, S)), new((B, chunks, S))
        logs = new((B, chunks, S), dtype=torch.float64)
        marks = new((B, chunks, S), dtype=torch.int32)
        basis = {"BASIS": True, "initial": None, "initial_stride": 0, "final": final}
        basis |= {"filtered": None, "predicted": None, "log_likelihood": logs, "delicate": marks}
        scan = start | {"final": final, "log_likelihood": logs, "marks": marks, "starts": starts}
        scan |= {"total": total, "delicate": delicate, "chunk": chunk, "chunks": chunks}
        names = ("lengths", "T", "HAS_LENGTHS", "S", "SP")
        scan |= {name: x for name, x in self.common().items() if name in names}
        one = self.config("starts", arch)
        return starts, [
            self._few_forward({}, arch, basis),
            Launch(few_states.hmm_filter_starts_kernel, B, scan, one),
        ]

    def _exact(self, arguments, arch) -> Launch:
        """What is delicate, again; the others take next to no time."""
        arguments = self.common() | arguments
        registers = MAX_REGISTERS if arch.startswith("sm_") else None
        config = Config({"BK": min(16, self.padded)}, max(1, self.padded // 32), 1, registers)
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
        if self.plan.chunks > 1:
            delicate.zero_()
        sums = self.empty_sums(arch)
        inputs, outputs = (*arguments, *incoming, *saved), (*sums, delicate)
        launching.run(("hmm_filter_backward", way), inputs, outputs, launches)
        return self.gradients(saved[0], sums), delicate

    def empty_sums(self, arch) -> Sums:
        B, T, S, V = self.sizes
        rows = B * self.plan.chunks
        programs = triton.cdiv(rows, self.config("backward", arch).tiles["BB"])
        new, few = self.emission.new_empty, self.few
        own_transition, own_emission = (x.ndim == 3 for x in (self.transition, self.emission))
        summed = few and SUMMED_SYMBOLS[self.emission.dtype] >= V
        return Sums(
            new((rows, S)),
            None if few else new((B, T, S)),
            None if summed else new((B, T, S)),
            new((rows if own_transition else programs, S, S)) if few else None,
            new((rows if own_emission else programs, S, V)) if summed else None,
        )

    def backward_launches(self, incoming, saved, sums: Sums, delicate, arch) -> list[Launch]:
        """What hmm_filter_backward runs."""
        names = ("filtered", "predicted", "log_likelihood")
        given = dict(zip(names, saved, strict=True)) | {"delicate": delicate}
        for name, gradient in zip(names, incoming, strict=True):
            given |= {f"grad_{name}": gradient, f"HAS_GRAD_{name.upper()}": gradient is not None}
        if not self.few:
            config, B = self.config("backward", arch), self.sizes[0]
            stored = {"outgoing": sums.outgoing, "adjoint": sums.adjoint, "weights": sums.weights}
            arguments = self.recursion() | given | stored | {"rows": B}
            grid = triton.cdiv(B, config.tiles["BB"])
            kernel = many_states_backward.hmm_filter_backward_kernel
            return [Launch(kernel, grid, arguments, config)]
        launches = []
        if self.plan.path == "chunks":
            (B, _, S, _), chunks, new = self.sizes, self.plan.chunks, self.emission.new_empty
            maps, ends = new((B, chunks, S + 1, S)), new((B, chunks, S))
            launches.append(self._few_backward(given, Sums(maps), arch, basis=True))
            scan = {"outgoing": maps, "ends": ends, "chunks": chunks, "S": S, "SP": self.padded}
            kernel = few_states_backward.hmm_filter_ends_kernel
            launches.append(Launch(kernel, B, scan, self.config("ends", arch)))
            given |= {"incoming": ends, "HAS_INCOMING": True}
        return [*launches, self._few_backward(given, sums, arch)]

    def _few_backward(self, given, sums: Sums, arch, basis=False) -> Launch:
        B, _, S, V = self.sizes
        config, rows = self.config("backward", arch), B * self.plan.chunks * (S + 1 if basis else 1)
        stored = {name: x for name, x in sums._asdict().items() if name != "adjoint"}
        arguments = self.recursion() | {"incoming": None, "HAS_INCOMING": False} | given | stored
        arguments |= {"OWN_TRANSITION": self.transition.ndim == 3, "BASIS": basis, "rows": rows}
        arguments |= {"OWN_EMISSION": self.emission.ndim == 3}
        summed = 0 if sums.grad_emission is None else V
        arguments |= {"SUMMED": summed, "BV": triton.next_power_of_2(max(summed, 1))}
        grid = triton.cdiv(rows, config.tiles["BB"])
        return Launch(few_states_backward.hmm_filter_backward_kernel, grid, arguments, config)

    def gradients(self, filtered, sums: Sums):
        """What is left to add up; torch's sums and products are deterministic."""
        B, T, S, V = self.sizes
        chunks = self.plan.chunks
        initial = sums.outgoing.view(B, chunks, S)[:, 0]
        if sums.grad_transition is None:
            left = filtered[:, :-1]
            right = sums.adjoint[:, 1:]  # type: ignore[index]  # one of the two is there
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
    """The launches of one call by label, on tensors without memory; of halves, the forward ones.

    own: which of initial, transition and emission are given for each sequence; wide: int64 symbols.
    """
    dtype = {name: dtype for dtype, name in MODES.items()}[mode]
    initial, transition, emission = ((batch,) if each else () for each in own)

    def empty(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    model = Model.of(
        empty(batch, steps, dtype=torch.int64 if wide else torch.int32),
        empty(*initial, states),
        empty(*transition, states, states),
        empty(*emission, states, symbols),
        empty(batch, dtype=torch.int64) if lengths else None,
        path,
    )
    saved = results.hmm_filter(model.observations, model.initial)
    launches = model.forward_launches(*saved, model.new_marks(), arch)
    if dtype in HALVES:
        return {label(launch): launch for launch in launches}
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


# Of halves, whose arithmetic is that of fp32.
HALF_FORMS = [("rows", 5, 5, True), ("rows", 64, 64, True), ("dot", 64, 64, False)]
HALF_FORMS += [("chunks", 5, 5, True)]


def specialisations(arch: str):
    """(name, launch) of every form."""
    for dtype, mode in MODES.items():
        for path, states, symbols, own in HALF_FORMS if dtype in HALVES else FORMS:
            sizes = {"states": states, "symbols": symbols, "batch": 64, "steps": 4096}
            launches = example_launches(mode=mode, arch=arch, own=(own,) * 3, path=path, **sizes)
            owner = "own" if own else "shared"
            for name, launch in launches.items():
                yield f"{name}.{path}.{mode}.S{states}.V{symbols}.{owner}", launch
