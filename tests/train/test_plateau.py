"""Training until a plateau, and curricula."""

import dataclasses
import math

import numpy as np
import pytest
from helpers.same_runs import same_files
from helpers.small_runs import SMALL, crash, interrupt_at

from bwt import tasks, train
from bwt.records.estimates import Estimate
from bwt.records.evaluation import METRICS, OF_MEAN, Evaluation, Score
from bwt.runs.directory import RunDirectory
from bwt.train.schedule import Plateau, curriculum, lr_factor


def evaluation(kl, floor=4.0):
    def score(kl):
        names = (*METRICS, OF_MEAN)
        return Score({name: Estimate(kl, 0.0) for name in names}, dict.fromkeys(names, ()))

    floors = {"uniform": score(floor), "constant": score(floor)}
    return Evaluation("bijection", {}, 2, 0, [], score(0.0), score(kl), floors, 0.0, None)


def end_of(curve, cap=10_000, **options):
    """The steps at which the rate begins to fall and at which the run ends."""
    plateau = Plateau.of(dataclasses.replace(SMALL, **{"until": "plateau", "steps": cap} | options))
    for step in sorted(plateau.evaluations()):
        plateau.record(step, evaluation(curve(step)))
        if plateau.reached(step):
            plateau.ending = step
            break
    return plateau.ending, plateau.last


def test_a_curve_that_goes_on_falling_is_trained_to_the_cap():
    assert end_of(lambda step: 3 * step**-0.5) == (8000, 10_000)


def test_a_curve_that_levels_off_ends_soon_after():
    ending, last = end_of(lambda step: 3 * step**-0.5 if step < 500 else 3 * 500**-0.5)
    assert 1000 <= ending <= 2000 and last == ending + round(ending / 4)


def test_a_model_at_a_floor_is_given_all_its_time():
    assert end_of(lambda step: 3.99) == (8000, 10_000)
    late = end_of(lambda step: 3.99 if step < 3000 else 1.0)
    assert late[0] > 6000


def test_one_bad_evaluation_is_no_plateau():
    assert end_of(lambda step: 3 * step**-0.5 * (3 if step == 640 else 1)) == (8000, 10_000)


def test_a_curve_that_trembles_is_not_ended_early():
    random = np.random.default_rng(0)

    def early(left):
        """Of 200 runs, those that end before the cap: the KL is multiplied by `left` with each
        doubling, and by chance with each evaluation."""

        def curve(step):
            return (step / 10) ** math.log2(left) * math.exp(0.15 * random.standard_normal())

        return sum(end_of(curve)[0] < 8000 for _ in range(200))

    assert early(0.71) <= 6 and early(1.0) >= 190


def test_a_solved_task_is_not_trained_on():
    def certain(step):
        return 3 * (100 / step) ** 4

    # 0.115 bits at step 226, 0.029 at 320; the floor is 4 bits.
    assert end_of(certain, until="solved") == (320, 400)
    assert end_of(certain) == (8000, 10_000)
    level = 3 * 500**-0.5
    assert end_of(lambda step: max(level, 3 * step**-0.5), until="solved") == end_of(
        lambda step: max(level, 3 * step**-0.5)
    )


def test_a_plateau_is_not_sought_within_a_curriculum():
    easy = {"curriculum": "num_pairs=1,2", "curriculum_steps": 4000}
    assert end_of(lambda step: 1.0)[0] < 100
    assert end_of(lambda step: 1.0, **easy)[0] == 8000  # of half the steps nothing is known before
    assert end_of(lambda step: 1e-4, until="solved", **easy)[0] == 10


def test_the_rate_is_held_and_then_falls():
    config = dataclasses.replace(SMALL, steps=1000, until="plateau", warmup=0.1)
    plateau = Plateau(config.steps)
    assert [lr_factor(step, config, plateau) for step in (0, 99, 500, 999)] == [0.01, 1, 1, 1]
    plateau.ending = 400
    factors = [lr_factor(step, config, plateau) for step in range(399, plateau.last)]
    assert plateau.last == 500 and factors[0] == 1 and 0 < factors[-1] < 0.02
    assert all(a > b for a, b in zip(factors[1:], factors[2:], strict=False))


PLATEAU = dataclasses.replace(SMALL, until="plateau", steps=120, lr=1e-9, average=0.5)


def easily_reached(monkeypatch):
    """A model that learns nothing and is not taken to be at a floor."""
    monkeypatch.setattr("bwt.train.schedule.at_floor", lambda kl, floors: False)


def test_a_run_stops_at_its_plateau_and_resumes_to_the_same_end(tmp_path, monkeypatch):
    easily_reached(monkeypatch)
    whole = train.train(PLATEAU, tmp_path / "whole")
    assert whole.evaluation is not None and whole.step == 71  # level at 40 and 57, and 14 more
    assert RunDirectory(tmp_path / "whole").last_step() == 71
    for at in (12, 60):  # before the fall and in it
        path = tmp_path / f"stopped-{at}"
        with monkeypatch.context() as patch:
            interrupt_at(at, crash, patch)
            with pytest.raises(MemoryError):
                train.train(PLATEAU, path)
        same_files(whole.run, train.resume(path).run)


def test_without_a_plateau_the_cap_is_reached(tmp_path):
    config = dataclasses.replace(PLATEAU, lr=1e-2)
    assert train.train(config, tmp_path / "run").step == config.steps


def drawn(monkeypatch):
    """The tasks of the steps that follow."""
    seen, sample = [], tasks.Bijection.sample

    def noted(self, *arguments, **options):
        seen.append(self)
        return sample(self, *arguments, **options)

    monkeypatch.setattr(tasks.Bijection, "sample", noted)
    return seen


def test_a_curriculum_comes_first_and_takes_turns(tmp_path, monkeypatch):
    config = dataclasses.replace(
        SMALL, curriculum="num_pairs=1,2", curriculum_steps=5, evaluations=1, steps=7
    )
    seen = drawn(monkeypatch)
    train.train(config, tmp_path / "run")
    drawn_in_steps = [task.num_pairs for task in seen[:7]]
    assert drawn_in_steps == [1, 2, 1, 2, 1, 3, 3]


def test_values_are_read_by_the_type_of_the_option():
    task = tasks.get("bijection", num_symbols=4, replacement=True)
    config = dataclasses.replace(SMALL, curriculum="replacement=false", curriculum_steps=1)
    assert [x.replacement for x in curriculum(config, task)] == [False]
    assert curriculum(SMALL, task) == []


@pytest.mark.parametrize(
    "text,complaint",
    [
        ("speed=3", "not OPTION=VALUE.* task bijection: num_symbols"),
        ("num_pairs", "not OPTION=VALUE"),
        ("replacement=maybe", "neither true nor false"),
        ("num_pairs=few", "not a value of type int"),
        ("num_symbols=3", "its vocab_size is 6, that of the task 8"),
        ("num_pairs=4", "longer sequences"),
    ],
)
def test_a_curriculum_that_does_not_fit_is_refused(text, complaint):
    config = dataclasses.replace(SMALL, curriculum=text, curriculum_steps=1)
    with pytest.raises(ValueError, match=complaint):
        curriculum(config, tasks.get("bijection", num_symbols=4))


def test_a_curriculum_needs_steps():
    with pytest.raises(ValueError, match="go together"):
        dataclasses.replace(SMALL, curriculum="num_pairs=1")


def test_resumed_within_a_curriculum(tmp_path, monkeypatch):
    config = dataclasses.replace(SMALL, curriculum="num_pairs=1,2", curriculum_steps=11)
    whole = train.train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_at(11, crash, patch)
        with pytest.raises(MemoryError):
            train.train(config, tmp_path / "stopped")
    same_files(whole.run, train.resume(tmp_path / "stopped").run)
