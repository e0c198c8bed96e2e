"""Small bugs, each of which one named test has to notice.

    .venv/bin/python -P tests/mutants.py            # all of them, in two processes
    .venv/bin/python -P tests/mutants.py headline   # those whose names contain one of the words

Each bug is applied alone to a copy of the checkout, and its test has to fail there. Before that,
all tests pass in the copy without any bug. The exit code is 1 if a bug survives its test, and 2 if
a row of the table does not fit the code or a test fails without a bug.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("bwt", "csrc", "kernels", "tests", "pyproject.toml", "setup.py")
LIBRARY = "bwt/_C.abi3.so"
SECONDS = 120.0  # that a test may take, on a busy machine
FAILED = 1  # exit code of pytest; others are errors of the call or of the collection


class Mutant(NamedTuple):
    name: str
    file: str
    old: str  # is in the file exactly once
    new: str
    test: str  # below tests/


MUTANTS = [
    # Ops in Python, and their oracles.
    Mutant(
        "entropy of attention in nats",
        "bwt/ops/_attention_torch.py",
        "positive.log2()",
        "positive.log()",
        "ops/test_attention.py::test_forward[B2-H2-T7-S7-D5-True-dtype0-torch]",
    ),
    Mutant(
        "fewer queries than keys see the first keys",
        "bwt/ops/_attention_torch.py",
        ".triu(keys - queries + 1)",
        ".triu(1)",
        "ops/test_attention.py::test_forward[B2-H1-T37-S93-D20-True-dtype0-torch]",
    ),
    Mutant(
        "named backend falls back",
        "bwt/ops/_dispatch.py",
        'raise RuntimeError(f"{op}: backend {backend!r} cannot serve: {reason}")',
        'return "torch"',
        "ops/test_attention.py::test_triton_is_refused_for_cpu_tensors",
    ),
    Mutant(
        "last state of a scan is the first",
        "bwt/ops/_selective_scan_torch.py",
        "last = states[:, -1]",
        "last = states[:, 0]",
        "ops/test_selective_scan_segments.py::"
        "test_values_and_gradients[B3-L17-E9-N3-False-dtype0-torch]",
    ),
    Mutant(
        "missing observations have probability one half",
        "bwt/ops/_hmm_filter_torch.py",
        "likelihoods = torch.where(missing[:, None, :], 1.0, likelihoods)",
        "likelihoods = torch.where(missing[:, None, :], 0.5, likelihoods)",
        "ops/test_hmm_filter.py::test_forward",
    ),
    Mutant(
        "only the last observation of a key counts",
        "bwt/reference/bijection_posterior.py",
        "self.likelihood[key] = _product(before, self.channel[:, value])",
        "self.likelihood[key] = self.channel[:, value]",
        "reference/test_bijection_posterior.py::"
        "test_noisy_bijection_posterior_is_the_sum_over_bijections[2]",
    ),
    Mutant(
        "gradient of the rates lacks a factor",
        "bwt/reference/selective_scan.py",
        "grad_A += along * step[:, t, :, None]",
        "grad_A += along",
        "reference/test_selective_scan.py::test_backward_is_the_slope",
    ),
    # Triton kernels, interpreted.
    Mutant(
        "v of a short sequence with the strides of k",
        "kernels/attention/short.py",
        "    b_q = load_rows(p_q, m_q, D, BD)\n    b_k = load_rows(p_k, m_k, D, BD)",
        "    p_v = row_pointers("
        "v, i_head, 0, o_s, H, k_stride_b, k_stride_h, k_stride_s, o_slot_k, PACK)\n"
        "    b_q = load_rows(p_q, m_q, D, BD)\n    b_k = load_rows(p_k, m_k, D, BD)",
        "kernels/test_attention.py::test_strided_inputs[interpreted-B2-H2-T37-S41-D20]",
    ),
    Mutant(
        "v of a long sequence with the strides of k",
        "kernels/attention/stream.py",
        "row_pointers(v, i_head, first_s, o_n, H, v_stride_b, v_stride_h, v_stride_s)",
        "row_pointers(v, i_head, first_s, o_n, H, k_stride_b, k_stride_h, k_stride_s)",
        "kernels/test_attention.py::test_strided_inputs[interpreted-B1-H2-T35-S260-D32]",
    ),
    Mutant(
        "gradient of lse is only read beside that of the output",
        "kernels/attention/stream_backward.py",
        "    if HAS_GRAD_LSE:\n",
        "    if HAS_GRAD_LSE and HAS_GRAD_OUT:\n",
        "kernels/test_attention.py::"
        "test_single_incoming_gradients[interpreted-grad_lse-B1-H1-T40-S270-D16]",
    ),
    Mutant(
        "gradient of the entropy with the wrong sign",
        "kernels/attention/short.py",
        "b_g -= tl.load(p_gh, mask=m_row, other=0.0)[None, :] * b_log2w",
        "b_g += tl.load(p_gh, mask=m_row, other=0.0)[None, :] * b_log2w",
        "kernels/test_attention.py::test_values[interpreted-causal-fp32-B3-H3-T13-S16-D32]",
    ),
    Mutant(
        "scan saves its states a step late",
        "kernels/selective_scan/passes.py",
        "m_saved = (m_t & ((o_t + 1) % EVERY == 0))",
        "m_saved = (m_t & (o_t % EVERY == 0))",
        "kernels/test_selective_scan.py::test_saved_states",
    ),
    Mutant(
        "likelihood keeps one factor of underflow protection",
        "kernels/hmm_filter/few_states.py",
        "b_count = b_length[:, None] * (BIAS + LIFT_EXPONENT)",
        "b_count = (b_length[:, None] - 1) * (BIAS + LIFT_EXPONENT)",
        "kernels/test_hmm_filter.py::test_values[interpreted-rows-B5-T7-S5-V6-own]",
    ),
    # C++.
    Mutant(
        "native: v with the strides of k",
        "csrc/cpu/attention/attention.cpp",
        "heads_of<const T>(v), heads_of<T>(outputs.out)",
        "{heads_of<const T>(v).data, k.stride(0), k.stride(1), k.stride(2)}, "
        "heads_of<T>(outputs.out)",
        "ops/test_strides.py::test_every_argument[attention T5 D6-float32-native]",
    ),
    Mutant(
        "native: norm without epsilon",
        "csrc/cpu/rms_norm/kernels_simd.h",
        "__builtin_sqrt(mean + epsilon)",
        "__builtin_sqrt(mean)",
        "ops/test_rms_norm.py::test_small_and_zero_rows[dtype0]",
    ),
    Mutant(
        "native: gradient of a norm's bias is overwritten",
        "csrc/cpu/rms_norm/kernels_simd.h",
        "load_at_most(a.grad_bias + i, count) + v, count",
        "v, count",
        "ops/test_add_rms_norm.py::test_values_and_gradients",
    ),
    Mutant(
        "native: the last saved state of a scan is not written",
        "csrc/cpu/selective_scan/forward_simd.h",
        "if (number < saved) {",
        "if (number + 1 < saved) {",
        "ops/test_selective_scan.py::test_values_and_gradients",
    ),
    Mutant(
        "native: likelihood keeps the factors of underflow protection",
        "csrc/cpu/hmm_filter/few_states/forward_simd.h",
        "return std::log(mantissa) + (exponents - steps * (kBias + kHmmLiftExponent<T>)) * kLn2;",
        "return std::log(mantissa) + (exponents - steps * kBias) * kLn2;",
        "ops/test_hmm_filter.py::test_forward[B1-T1-S1-V1-own0-dtype0-native]",
    ),
    Mutant(
        "native: evidence lacks the last pair",
        "csrc/cpu/bijection_posterior/noiseless_simd.h",
        "unused -= fresh;\n    out.log_evidence[t] = tables.log_evidence[unused];",
        "out.log_evidence[t] = tables.log_evidence[unused];\n    unused -= fresh;",
        "ops/test_bijection_posterior.py::test_noiseless",
    ),
    # Tasks.
    Mutant(
        "noise is the probability of a right value",
        "bwt/tasks/bijection.py",
        "wrong = uniform(*values.shape, generator=generator, device=device) < self.noise",
        "wrong = uniform(*values.shape, generator=generator, device=device) >= self.noise",
        "tasks/test_bijection.py::test_noise_changes_what_is_shown_and_not_the_target",
    ),
    Mutant(
        "a wrong value may be the right one",
        "bwt/tasks/bijection.py",
        "other = torch.randint(1, V, values.shape",
        "other = torch.randint(0, V, values.shape",
        "tasks/test_bijection.py::test_noise_changes_what_is_shown_and_not_the_target",
    ),
    Mutant(
        "the unbound predictor knows the present value",
        "bwt/tasks/bijection.py",
        "seen = shown_here.cumsum(1) - shown_here > 0",
        "seen = shown_here.cumsum(1) > 0",
        "tasks/test_bijection.py::test_floors",
    ),
    Mutant(
        "stickiness is the weight of the drawn rows",
        "bwt/tasks/hmm.py",
        "torch.lerp(transition, identity, self.stickiness)",
        "torch.lerp(identity, transition, self.stickiness)",
        "tasks/test_hmm.py::test_floor_and_stickiness",
    ),
    Mutant(
        "a short memory begins a step early",
        "bwt/tasks/hmm.py",
        "start = (time - k + 1).clamp_min(0)",
        "start = (time - k).clamp_min(0)",
        "tasks/test_hmm.py::test_posterior_and_floors[rows-state]",
    ),
    Mutant(
        "the next symbol without a transition",
        "bwt/tasks/hmm.py",
        "states @ transition @ emission",
        "states @ emission",
        "tasks/test_hmm.py::test_posterior_and_floors[rows-symbol]",
    ),
    Mutant(
        "unseen keys are stored ones",
        "bwt/tasks/recall.py",
        "torch.where(unseen, torch.arange(N, N + Q, device=device), asked)",
        "torch.where(unseen, torch.arange(Q, device=device), asked)",
        "tasks/test_recall.py::test_against_plain_reading",
    ),
    # Training.
    Mutant(
        "rate is zero at the last step",
        "bwt/train/schedule.py",
        "left = (config.steps - step) / (config.steps - rise + 1)",
        "left = (config.steps - step - 1) / (config.steps - rise)",
        "train/test_train.py::test_schedule",
    ),
    Mutant(
        "short gradients are lengthened",
        "bwt/train/optim.py",
        "(self.limit / (norm + 1e-6)).clamp(max=1.0)",
        "(self.limit / (norm + 1e-6))",
        "train/test_optim.py::test_adamw_is_that_of_torch_in_float64",
    ),
    Mutant(
        "momentum without the look ahead of Nesterov",
        "bwt/train/optim.py",
        "nesterov = torch._foreach_lerp(gradients, momenta, MOMENTUM)",
        "nesterov = momenta",
        "train/test_optim.py::test_muon_steps_along_the_momentum_of_each_matrix",
    ),
    Mutant(
        "mean of weights counts a step too many",
        "bwt/train/step.py",
        "share = 1 / (step + 1 - start)",
        "share = 1 / (step + 2 - start)",
        "train/test_train.py::test_the_averaged_weights_are_the_ones_saved_and_evaluated",
    ),
    Mutant(
        "divergence is reported a step early",
        "bwt/train/divergence.py",
        "first, self.seen = self.seen + 1, step",
        "first, self.seen = self.seen, step",
        "train/test_divergence.py::test_a_look_reads_the_losses_since_the_last_one",
    ),
    Mutant(
        "a single high loss is a divergence",
        "bwt/train/divergence.py",
        "self.above = self.above + 1 if loss > self.limit else 0",
        "self.above = self.above + 1 if loss > self.limit else self.above",
        "train/test_divergence.py::test_what_is_hopeless",
    ),
    Mutant(
        "plateau forgets the curriculum",
        "bwt/train/schedule.py",
        "if step > self.curriculum_steps and not at_floor(kl, floors):",
        "if not at_floor(kl, floors):",
        "train/test_plateau.py::test_a_plateau_is_not_sought_within_a_curriculum",
    ),
    Mutant(
        "penalty of keys with their mean",
        "bwt/train/penalty.py",
        "nn.functional.normalize(k - k.mean(2, keepdim=True), dim=-1)",
        "nn.functional.normalize(k, dim=-1)",
        "train/test_penalty.py::test_squared_cosine_by_brute_force",
    ),
    Mutant(
        "a curriculum has one easier task only",
        "bwt/train/step.py",
        "easier = step % len(self.curriculum) if",
        "easier = 0 if",
        "train/test_plateau.py::test_a_curriculum_comes_first_and_takes_turns",
    ),
    Mutant(
        "weight decay moves what is frozen",
        "bwt/train/step.py",
        "            self.freeze.restore(self.master, self.average)\n",
        "            self.freeze.restore(self.average)\n",
        "train/test_freezing.py::test_from_the_start",
    ),
    Mutant(
        "resumed run has the generator of the seed",
        "bwt/train/run.py",
        '            self.step.generator.set_state(self._own_generator(state["generator"]))\n',
        "",
        "train/test_train.py::test_resumed_after_a_crash_equals_uninterrupted",
    ),
    # Evaluation.
    Mutant(
        "evaluation draws the training seed",
        "bwt/evaluate.py",
        'streams.generator("evaluation", seed, device)',
        'streams.generator("training", seed, device)',
        "test_streams.py::test_evaluation_in_python_does_not_see_the_training_data[lstm]",
    ),
    Mutant(
        "excess over the entropy of the model",
        "bwt/evaluate.py",
        "-log_hit / math.log(2) - exact_entropy,",
        "-log_hit / math.log(2) - entropy,",
        "test_evaluate.py::test_metrics_against_numpy[bijection0]",
    ),
    Mutant(
        "leak is the mass on possible outcomes",
        "bwt/evaluate.py",
        "torch.where(p > 0, 0.0, q).sum(-1)",
        "torch.where(p > 0, q, 0.0).sum(-1)",
        "test_evaluate.py::test_metrics_against_numpy[bijection0]",
    ),
    Mutant(
        "standard errors of a population",
        "bwt/evaluate.py",
        "self.scatter / (self.count * (self.count - 1))",
        "self.scatter / self.count**2",
        "test_evaluate.py::test_metrics_against_numpy[hmm]",
    ),
    Mutant(
        "the scatter between batches is lost",
        "bwt/evaluate.py",
        "scatter = scatter + weight * shift[:, :, None] * shift[:, None, :]",
        "scatter = scatter",
        "test_evaluate.py::test_metrics_against_numpy[hmm]",
    ),
    Mutant(
        "effective memory on a linear scale",
        "bwt/evaluate.py",
        "share = (above - math.log(kl)) / (above - below)",
        "share = (math.exp(above) - kl) / (math.exp(above) - math.exp(below))",
        "test_evaluate.py::test_read_memory",
    ),
    Mutant(
        "a baseline is beaten without a margin",
        "bwt/records/floors.py",
        "return model.mean + 2 * error < floor.mean",
        "return model.mean < floor.mean",
        "records/test_records.py::test_floors",
    ),
    Mutant(
        "slope of a curve over all of it",
        "bwt/records/curves.py",
        "if s * 2**OCTAVES >= last > 0 and s > 0",
        "if last > 0 and s > 0",
        "records/test_curves.py::test_only_the_end_counts",
    ),
    # Diagnostics.
    Mutant(
        "standard error of a sum",
        "bwt/geometry/stats.py",
        "se = values.std(0) / math.sqrt(len(values))",
        "se = values.std(0)",
        "geometry/test_stats.py::test_an_estimate_has_the_standard_error_of_a_mean",
    ),
    Mutant(
        "jackknife as of independent values",
        "bwt/geometry/stats.py",
        "square().sum() * (len(without) - 1) / len(without)",
        "square().sum() / (len(without) - 1)",
        "geometry/test_stats.py::test_the_jackknife_error_of_a_mean_is_its_standard_error",
    ),
    Mutant(
        "centred keys are not centred",
        "bwt/geometry/keys.py",
        "rest = k - k.mean(2, keepdim=True)",
        "rest = k",
        "geometry/test_geometry.py::test_a_common_part_of_all_keys_does_not_count_when_centred",
    ),
    Mutant(
        "probe is scored on what it was fitted to",
        "bwt/geometry/probes.py",
        "return Probe(weight, x[half:] @ weight, y[half:], mean)",
        "return Probe(weight, x[:half] @ weight, y[:half], mean)",
        "geometry/test_stats.py::test_a_probe_is_not_scored_on_what_it_was_fitted_to",
    ),
    Mutant(
        "another head is taken out",
        "bwt/geometry/ablation.py",
        "own = slice(head * size, (head + 1) * size)",
        "own = slice((heads - 1 - head) * size, (heads - head) * size)",
        "geometry/test_geometry.py::test_a_head_that_is_not_used_costs_nothing",
    ),
    Mutant(
        "exchanged keys are their own",
        "bwt/geometry/key_edits.py",
        '"exchanged": lambda k: k.roll(1, 0),',
        '"exchanged": lambda k: k.roll(0, 0),',
        "geometry/test_geometry.py::test_changed_keys_cost_bits_unless_softmax_is_blind_to_the_change",
    ),
    Mutant(
        "a lens is fitted to the answers of other sequences",
        "bwt/geometry/lens.py",
        "final[:half].flatten(0, 1).exp()",
        "final[half:].flatten(0, 1).exp()",
        "geometry/test_lens.py::test_a_basis_that_the_head_does_not_know_is_found_by_the_tuned_lens",
    ),
    Mutant(
        "attention to the key is reported as attention to the answer",
        "bwt/geometry/formation.py",
        "((same, places.keys), (answered, places.values))",
        "((same, places.values), (answered, places.keys))",
        "geometry/test_formation.py::test_a_planted_look_up_is_found_when_it_forms",
    ),
    Mutant(
        "noise of the references counts as distance",
        "bwt/geometry/dissociation.py",
        "return (ways - self.between) / 2",
        "return ways / 2",
        "geometry/test_dissociation.py::test_noise_that_hides_the_distance_is_no_reverse",
    ),
    Mutant(
        "agreement by chance counts",
        "bwt/geometry/clusters.py",
        "chance = one * other / pairs(table.sum()[None])",
        "chance = 0.0",
        "geometry/test_stats.py::test_silhouette_and_rand_index_by_brute_force",
    ),
    # Report and tables.
    Mutant(
        "headline: the entropy instead of its error",
        "bwt/report/overview.py",
        "their entropy is off by {words.pm(model['entropy_mae'])} bits",
        "their entropy is off by {words.pm(model['entropy'])} bits",
        "test_planted_numbers.py::test_headlines_of_the_report",
    ),
    Mutant(
        "farthest at a step too early",
        "bwt/report/overview.py",
        "Farthest from Bayes at step {worst + 1} ",
        "Farthest from Bayes at step {worst} ",
        "test_planted_numbers.py::test_chapters_of_the_report",
    ),
    Mutant(
        "total variation is the leak",
        "bwt/report/compare.py",
        'words.num(model["tvd"].mean)',
        'words.num(model["leak"].mean)',
        "test_planted_numbers.py::test_tables_of_the_report",
    ),
    Mutant(
        "a baseline is beaten at the last evaluation",
        "bwt/report/overview.py",
        "by training step {beaten[0]:,}",
        "by training step {beaten[-1]:,}",
        "test_planted_numbers.py::test_chapters_of_the_report",
    ),
    Mutant(
        "verdict: accuracies of model and Bayes are exchanged",
        "bwt/records/evaluation.py",
        'for x in (self.model, self.exact))\n        lines.append(f"Its best',
        'for x in (self.exact, self.model))\n        lines.append(f"Its best',
        "test_planted_numbers.py::test_terminal_of_eval",
    ),
    Mutant(
        "deviation over seeds of a population",
        "bwt/reproduce/tables/table.py",
        "/ (len(values) - 1))",
        "/ len(values))",
        "reproduce/test_tables.py::test_spread",
    ),
    Mutant(
        "longer lengths show the error at the length of training",
        "bwt/reproduce/tables/lengths.py",
        "x.metrics if size == _trained_length(x) else x.lengths.get(str(size))",
        "x.metrics",
        "test_planted_numbers.py::test_tables_of_the_reproduction",
    ),
    # Command line.
    Mutant(
        "default of eval --sequences",
        "bwt/cli/commands/eval.py",
        'add("--sequences", metavar="N", type=int, default=4096,',
        'add("--sequences", metavar="N", type=int, default=2048,',
        "cli/test_defaults.py",
    ),
    Mutant(
        "default of train --clip",
        "bwt/runs/config.py",
        'clip: float = option(1.0, "largest norm',
        'clip: float = option(0.0, "largest norm',
        "cli/test_defaults.py",
    ),
    Mutant(
        "eval forgets other lengths",
        "bwt/cli/commands/eval.py",
        "Evaluations(own, former.lengths | lengths)",
        "Evaluations(own, lengths)",
        "test_planted_numbers.py::test_terminal_of_eval",
    ),
    Mutant(
        "a diverged run ends like a finished one",
        "bwt/cli/commands/train.py",
        "        return DIVERGED\n",
        "        return 0\n",
        "train/test_divergence.py::test_as_json",
    ),
    Mutant(
        "a refused value ends like a finished command",
        "bwt/cli/__init__.py",
        "        _complain(error)\n        return 2\n    except KeyboardInterrupt",
        "        _complain(error)\n        return 0\n    except KeyboardInterrupt",
        "cli/test_cli.py::test_bad_value_is_one_line_and_two",
    ),
]


class MutantError(Exception):
    """A row of the table does not fit the code, or a test fails without a bug."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="a part of a name (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default: 2)")
    arguments = parser.parse_args(argv)
    words = arguments.names or [""]
    chosen = [x for x in MUTANTS if any(word in x.name for word in words)]
    try:
        survivors = survivors_of(chosen, arguments.jobs)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} bugs were noticed")
    for name in survivors:
        print(f"SURVIVED: {name}")
    return 1 if survivors else 0


def survivors_of(mutants: Sequence[Mutant], jobs: int) -> list[str]:
    """Return the names of the mutants that their tests do not notice."""
    faults = [fault for mutant in mutants if (fault := fault_of(mutant))]
    if not mutants or faults:
        raise MutantError("\n".join(faults) or "no bug has such a name")
    native = [x for x in mutants if x.file.startswith("csrc/")]
    others = [x for x in mutants if x not in native]
    survivors = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: queue.Queue[Path] = queue.Queue()
        for i in range(jobs):
            copies.put(copy_checkout(Path(folder) / f"copy{i}"))
        check_clean(copies.queue[0], others, jobs)
        futures = [pool.submit(check_native, native, copies)] if native else []
        futures += [pool.submit(check_one, x, copies) for x in others]
        for future in as_completed(futures):
            survivors += future.result()
    return survivors


def fault_of(mutant: Mutant) -> str | None:
    """Return what is wrong with a row of the table, if anything."""
    count = (ROOT / mutant.file).read_text().count(mutant.old)
    if count == 1:
        return None
    return f"{mutant.name}: {mutant.file} has its old text {count} times, not once:\n{mutant.old}"


def copy_checkout(to: Path) -> Path:
    """Copy what tests need, so that the package is imported from the copy's root."""
    to.mkdir()
    skipped = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=skipped)
        else:
            shutil.copy2(ROOT / name, to / name)
    (to / "bwt/kernels").symlink_to("../kernels")
    return to


def check_clean(copy: Path, mutants: Sequence[Mutant], jobs: int = 1) -> None:
    """Raise unless all tests of the mutants pass without a bug."""
    tests = sorted({f"tests/{x.test}" for x in mutants})
    if not tests:
        return
    started = time.perf_counter()
    done = run_tests(copy, *tests, *(["-n", str(jobs)] if jobs > 1 else []), seconds=None)
    if done.returncode:
        raise MutantError(f"without a bug, not all tests pass:\n{done.stdout}{done.stderr}")
    passed = time.perf_counter() - started
    print(f"{len(tests)} tests pass without a bug ({passed:.0f} s)", flush=True)


def check_native(mutants: Sequence[Mutant], copies: queue.Queue[Path]) -> list[str]:
    """Check mutants in C++ one after the other, in a copy with a library that is built without
    optimisation: a few seconds for each file."""
    copy = copies.get()
    optimised = (copy / LIBRARY).read_bytes()
    try:
        build(copy)
        check_clean(copy, mutants)
        return [name for x in mutants for name in check(x, copy)]
    finally:
        (copy / LIBRARY).write_bytes(optimised)
        copies.put(copy)


def check_one(mutant: Mutant, copies: queue.Queue[Path]) -> list[str]:
    copy = copies.get()
    try:
        return check(mutant, copy)
    finally:
        copies.put(copy)


def check(mutant: Mutant, copy: Path) -> list[str]:
    """Return the name of the mutant if its test does not notice it, and report the result."""
    path = copy / mutant.file
    text = path.read_text()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        if mutant.file.startswith("csrc/"):
            build(copy)
        started = time.perf_counter()
        done = run_tests(copy, f"tests/{mutant.test}", seconds=SECONDS)
    finally:
        path.write_text(text)
    if done.returncode not in (0, FAILED):
        raise MutantError(f"{mutant.name}: its test cannot run:\n{done.stdout}{done.stderr}")
    noticed = done.returncode == FAILED
    passed = time.perf_counter() - started
    print(f"{'noticed' if noticed else 'SURVIVED':<9}{passed:5.1f} s  {mutant.name}", flush=True)
    return [] if noticed else [mutant.name]


def build(copy: Path) -> None:
    """Compile what has changed since the last time, and link the library into the copy."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    settings = {"BWT_DEBUG": "1", "BWT_CUDA": "0"}
    done = run([*command, "--build-temp", "build"], copy, settings)
    if done.returncode:
        raise MutantError(f"the library of {copy} cannot be built:\n{done.stdout}{done.stderr}")


def run_tests(copy: Path, *words: str, seconds: float | None) -> subprocess.CompletedProcess[str]:
    """Run tests of the copy, with the package of the copy. Byte code is kept for the next run, as
    most of the time goes into imports."""
    settings = {
        "PYTHONPATH": str(copy),
        "PYTHONPYCACHEPREFIX": str(copy.parent / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *words]
    return run(command, copy, settings, seconds)


def run(
    command: Sequence[str], copy: Path, settings: dict[str, str], seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    # Answers of slow oracles that were kept by the tests without a bug would hide one in them.
    inherited = {name: x for name, x in os.environ.items() if name != "BWT_TEST_ORACLES"}
    try:
        return subprocess.run(
            command,
            cwd=copy,
            env={**inherited, **settings},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, f"not done after {seconds} s", "")


@pytest.mark.slow
def test_no_bug_survives():
    assert main([]) == 0


if __name__ == "__main__":
    sys.exit(main())
