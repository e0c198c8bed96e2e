"""Runs a batch of blocks: control flow, divergence, barriers.

Lanes that are at the same instruction form a group and run in lockstep, whichever warp or block
they belong to. The group with the lowest program counter runs first, so that lanes that took a
longer way catch up and merge. To let a missing barrier show in values too, the warps that pass
a barrier are split at random into early and late ones, and the late ones move only when every
early one waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import PTXError
from .machine import WARP, Machine
from .ops_warp import ballot
from .steps import Step, bind_steps


@dataclass(eq=False)
class Group:
    """Lanes that are at the same instruction."""

    pc: int
    mask: np.ndarray
    turn: int


class Executor:
    def __init__(self, machine: Machine, rng: np.random.Generator, max_steps: int, timed: bool):
        self.machine = machine
        self.stats = machine.stats
        self.rng = rng
        self.max_steps = max_steps
        self.steps = bind_steps(machine)
        self.counts = np.zeros(len(self.steps), np.int64)
        self.timed = timed
        self.stretches: list[tuple[int, int, np.ndarray]] = []  # of this batch, and whose warps
        self.longest: list[tuple[int, int]] = []  # those of the warp with most instructions
        self.groups: list[Group] = []
        self.parked: list[Group] = []  # they wait for other lanes of their warps
        self.ready: set[str] = set()
        self.partial: dict[str, np.ndarray] = {}
        self.exists = np.zeros(machine.lanes, bool)
        self.barrier = np.zeros(machine.lanes, np.int64)  # 1 + number of the awaited barrier
        self.resume = np.zeros(machine.lanes, np.int64)
        self.specials = {
            "branch": self._branch,
            "table": self._branch_table,
            "exit": self._exit,
            "barrier": self._barrier,
            "collective": self._collective,
        }

    def run_batch(self) -> None:
        """Run all blocks for which the machine was prepared."""
        self.ready.clear()
        self.partial.clear()
        self.exists[:] = self.machine.live
        self._spread(0, self.exists.copy())
        with np.errstate(all="ignore"):
            while True:
                if self.groups:
                    self._run(self._next_group())
                elif not self._release_barriers():
                    break
        if self.timed:
            self._keep_longest()
            self.stats.loaded.clear()

    def _keep_longest(self) -> None:
        sizes = np.array([end - first for first, end, _ in self.stretches])
        taken = np.stack([warps for _, _, warps in self.stretches], axis=1)  # [warps, stretches]
        warp = int((taken @ sizes).argmax())
        if (taken[warp] @ sizes) > sum(end - first for first, end in self.longest):
            self.longest = [(first, end) for first, end, warps in self.stretches if warps[warp]]
        self.stretches.clear()

    def _spread(self, pc: int, mask: np.ndarray) -> None:
        """Let some warps go ahead and the others follow."""
        if not self.machine.kernel.communicates or self.machine.layout.lanes_per_block == WARP:
            self.groups.append(Group(pc, mask, 0))
            return
        early = np.repeat(self.rng.random(self.machine.lanes // WARP) < 0.5, WARP)
        for turn, part in enumerate((mask & early, mask & ~early)):
            self._push(pc, part, turn)

    def _push(self, pc: int, mask: np.ndarray, turn: int) -> None:
        if mask.any():
            self.groups.append(Group(pc, mask, turn))

    def _next_group(self) -> Group:
        """Take the lowest group, merged with those at the same place."""
        turn, pc = min((group.turn, group.pc) for group in self.groups)
        same = [g for g in self.groups if g.pc == pc and g.turn == turn]
        if len(same) == 1:
            self.groups.remove(same[0])
            return same[0]
        self.groups = [g for g in self.groups if g.pc != pc or g.turn != turn]
        return Group(pc, np.logical_or.reduce([g.mask for g in same]), turn)

    def _run(self, group: Group) -> None:
        """Run until the group branches, has to wait, or meets another group."""
        others = [g.pc for g in self.groups if g.turn == group.turn]
        limit = min(others, default=len(self.steps))
        start = group.pc
        try:
            finished = self._straight_line(group, limit)
        except PTXError as error:
            step = self.steps[min(group.pc, len(self.steps) - 1)]
            raise PTXError(f"{error}; line {step.line}: {step.text}") from None
        warps = group.mask.reshape(-1, WARP).any(axis=1)
        self.counts[start : group.pc + finished] += np.count_nonzero(warps)
        if self.timed:
            self.stretches.append((start, group.pc + finished, warps))
        self.stats.steps += group.pc + 1 - start
        if self.stats.steps > self.max_steps:
            line = self.steps[min(group.pc, len(self.steps) - 1)].line
            raise PTXError(f"no end after {self.max_steps} steps, now at line {line}")
        if not finished:
            self.groups.append(group)

    def _straight_line(self, group: Group, limit: int) -> bool:
        """Advance `group.pc`; true if a special instruction has disposed of the group."""
        ready, steps = self.ready, self.steps
        mask = None if group.mask.all() else group.mask
        while group.pc < limit:
            step = steps[group.pc]
            if not step.reads <= ready:
                self._check_reads(step, group.mask)
            if step.special and not (step.convergent and self._whole_warps(group)):
                self.specials[step.special](step, group)
                return True
            active = mask
            if step.guard is not None:
                active = step.active(mask)
                if active is not None and not active.any():
                    active = False
            if active is not False:
                if self.timed:
                    self.stats.step = group.pc
                step.run(active)
            if not step.writes <= ready:
                self._mark_written(step, group.mask)
            group.pc += 1
        if limit == len(steps):
            raise PTXError("the kernel runs past its end")
        return False

    def _check_reads(self, step: Step, mask: np.ndarray) -> None:
        """A register counts as written even where the writing instruction was predicated off.

        Triton reads such registers on purpose and discards the result.
        """
        for name in step.reads - self.ready:
            written = self.partial.get(name)
            if written is None or not written[mask].all():
                raise PTXError(f"read of register {name.partition('@')[0]} before it is written")

    def _mark_written(self, step: Step, mask: np.ndarray) -> None:
        for name in step.writes - self.ready:
            written = self.partial.get(name)
            written = mask.copy() if written is None else written | mask
            self.partial[name] = written
            if not (self.machine.live & ~written).any():
                self.ready.add(name)

    def _whole_warps(self, group: Group) -> bool:
        missing = self.machine.live & ~group.mask
        if not missing.any():
            return True
        torn = missing.reshape(-1, WARP).any(axis=1)
        return not (torn & group.mask.reshape(-1, WARP).any(axis=1)).any()

    def _guarded(self, step: Step, group: Group) -> np.ndarray:
        """The lanes that execute a special instruction; the others go on after it."""
        if step.guard is None:
            return group.mask
        active = step.active(group.mask)
        self._push(group.pc + 1, group.mask & ~active, group.turn)
        return active

    def _branch(self, step: Step, group: Group) -> None:
        taken = self._guarded(step, group)
        if taken is not group.mask and taken.any():
            torn = (group.mask & ~taken).reshape(-1, WARP).any(axis=1)
            torn &= taken.reshape(-1, WARP).any(axis=1)
            self.stats.divergent_branches += int(np.count_nonzero(torn))
        target = step.targets[0]
        landing = self.steps[target] if target < len(self.steps) else None
        if landing is not None and landing.special == "exit" and landing.guard is None:
            # An early return: these lanes are gone before the others reach a barrier.
            self.counts[target] += _count_warps(taken)
            self._leave(taken)
        else:
            self._push(target, taken, group.turn)

    def _branch_table(self, step: Step, group: Group) -> None:
        active = self._guarded(step, group)
        index = np.broadcast_to(step.index, active.shape)
        if (index[active] >= len(step.targets)).any():
            raise PTXError("brx.idx with an index beyond its table")
        for i, target in enumerate(step.targets):
            self._push(target, active & (index == i), group.turn)

    def _exit(self, step: Step, group: Group) -> None:
        self._leave(self._guarded(step, group))

    def _leave(self, leaving: np.ndarray) -> None:
        for parked in self.parked:
            waiting = self.steps[parked.pc]
            if (self._missing(waiting, parked.mask) & leaving).any():
                raise PTXError(f"{_divergence(waiting)}; lanes it waits for exit")
        self.machine.live &= ~leaving

    def _missing(self, step: Step, mask: np.ndarray) -> np.ndarray:
        """The live lanes that lanes of `mask` name as members and that are not in `mask`."""
        words = np.where(mask, step.member_words(mask.size), np.uint32(0)).reshape(-1, WARP)
        named = np.bitwise_or.reduce(words, axis=1)[:, None] >> self.machine.lane[:WARP]
        return ((named & 1).astype(bool).reshape(-1)) & self.machine.live & ~mask

    def _gather(self, step: Step, group: Group) -> np.ndarray:
        """The lanes that are complete; those that miss members stay parked."""
        active = self._guarded(step, group)
        for parked in [p for p in self.parked if p.pc == group.pc]:
            active = active | parked.mask
            self.parked.remove(parked)
        words = step.member_words(active.size)
        outsider = active & ((words >> self.machine.lane.astype(np.uint32)) & 1 == 0)
        if outsider.any():
            raise PTXError("a lane executes this but its member mask does not name it")
        absent = ballot(self.machine.live & ~active)
        incomplete = active & ((words & absent) != 0)
        if incomplete.any():
            self.parked.append(Group(group.pc, incomplete, group.turn))
        return active & ~incomplete

    def _collective(self, step: Step, group: Group) -> None:
        complete = self._gather(step, group)
        if complete.any():
            step.run(complete)
            self._mark_written(step, complete)
            self._push(group.pc + 1, complete, group.turn)

    def _barrier(self, step: Step, group: Group) -> None:
        complete = self._gather(step, group)
        self.barrier[complete] = step.barrier_number + 1
        self.resume[complete] = group.pc + 1
        if step.run is not None:
            step.run(complete)  # bar.red collects its predicates

    def _release_barriers(self) -> bool:
        """Open every complete barrier; false if all lanes have exited."""
        machine = self.machine
        if not machine.live.any():
            return False
        waiting = np.unique(np.stack([machine.block, self.barrier])[:, self.barrier > 0], axis=1)
        opened = np.zeros(machine.lanes, bool)
        for block, number in waiting.T:
            here = (machine.block == block) & (self.barrier == number)
            if self._is_complete(block, here):
                opened |= here
                machine.shared.pass_barrier(block)
        if not opened.any():
            self._deadlock()
        self.barrier[opened] = 0
        for pc in np.unique(self.resume[opened]):
            mask = opened & (self.resume == pc)
            step = self.steps[pc - 1]
            if step.finish is not None:
                step.finish(mask)
            self._mark_written(step, mask)
            self._spread(int(pc), mask)
        return True

    def _is_complete(self, block: int, here: np.ndarray) -> bool:
        of_block = self.machine.block == block
        if (self.machine.live & of_block & ~here).any():
            return False
        gone = self.exists & of_block & ~self.machine.live
        self.stats.exited_before_barrier += bool(gone.any())
        return True

    def _deadlock(self) -> None:
        if self.parked:
            parked = self.parked[0]
            step = self.steps[parked.pc]
            raise PTXError(f"{_divergence(step)}; line {step.line}: {step.text}")
        lines = sorted({self.steps[pc - 1].line for pc in self.resume[self.barrier > 0]})
        raise PTXError(f"deadlock: warps wait at barriers in lines {lines}")


def _count_warps(mask: np.ndarray) -> int:
    return np.count_nonzero(mask.reshape(-1, WARP).any(axis=1))


def _divergence(step: Step) -> str:
    if step.special == "barrier":
        return f"barrier in divergent code, line {step.line}"
    return f"the member mask names inactive lanes, line {step.line}"
