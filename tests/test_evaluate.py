"""Evaluation against a plain NumPy version, and what its verdict says of known predictors."""

import json
import math

import numpy as np
import pytest
import torch

from bwt import tasks
from bwt.evaluate import evaluate, read_memory
from bwt.records.evaluation import Evaluation

HMM = tasks.get("hmm", num_states=3, num_symbols=4, length=6, stickiness=0.6)
BIJECTION = tasks.get("bijection", num_symbols=5, replacement=False)
REPEATS = tasks.get("bijection", num_symbols=5, replacement=True, num_pairs=7)
RECALL = tasks.get("recall", num_pairs=4, num_keys=8, num_values=8, num_queries=3, unseen=0.3)


def exactly(batch):
    return batch.posterior.double().log()


def uniformly(batch):
    return torch.full_like(batch.posterior, -math.log(batch.posterior.shape[-1]))


def noisily(batch):
    """Reproducible, wrong, and positive everywhere."""
    bump = torch.sin(torch.arange(batch.posterior.numel()) * 1.7).view_as(batch.posterior)
    return (batch.posterior.clamp_min(1e-3).log() + bump).log_softmax(-1)


def run(predict, task, **arguments):
    return evaluate(predict, task, **{"num_sequences": 500, "batch_size": 128} | arguments)


def numpy_metrics(p, log_q, targets):
    """Metrics [N, P] by loops over sequences, positions and outcomes, in float64."""
    N, P, V = p.shape
    names = ("entropy", "entropy_mae", "kl", "tvd", "excess", "leak", "accuracy", "signed")
    out = {name: np.zeros((N, P)) for name in names}
    for n, t in np.ndindex(N, P):
        p_row = p[n, t] / p[n, t].sum()
        q_row = np.exp(log_q[n, t])
        q_row /= q_row.sum()
        h_p = -sum(x * np.log2(x) for x in p_row if x > 0)
        h_q = -sum(x * np.log2(x) for x in q_row if x > 0)
        out["entropy"][n, t] = h_q
        out["signed"][n, t] = h_q - h_p
        out["entropy_mae"][n, t] = abs(h_q - h_p)
        out["kl"][n, t] = sum(
            p_row[v] * (np.log2(p_row[v]) - np.log2(q_row[v])) for v in range(V) if p_row[v] > 0
        )
        out["tvd"][n, t] = sum(max(p_row[v] - q_row[v], 0) for v in range(V))
        out["excess"][n, t] = -np.log2(q_row[targets[n, t]]) - h_p
        out["leak"][n, t] = sum(q_row[v] for v in range(V) if p_row[v] == 0)
        out["accuracy"][n, t] = np.argmax(q_row) == targets[n, t]
    return out


def check(estimate, values):
    np.testing.assert_allclose(estimate.mean, values.mean(0), atol=1e-9)
    se = values.std(0, ddof=1) / math.sqrt(len(values))
    np.testing.assert_allclose(estimate.se, se, atol=1e-9)


@pytest.mark.parametrize("task", [BIJECTION, REPEATS, HMM, RECALL], ids=lambda task: task.name)
def test_metrics_against_numpy(task):
    """37 sequences in batches of 16: the last one is short."""
    seen = []

    def predict(batch):
        log_q = noisily(batch)
        floors = {name: floor.double().log() for name, floor in task.floors(batch).items()}
        seen.append((batch, {"model": log_q, "uniform": uniformly(batch)} | floors))
        return log_q

    result = run(predict, task, num_sequences=37, batch_size=16)
    assert [len(batch.tokens) for batch, _ in seen] == [16, 16, 5]
    p = np.concatenate([batch.posterior.double().numpy() for batch, _ in seen])
    targets = np.concatenate([batch.targets.numpy() for batch, _ in seen])
    predictions = {
        name: np.concatenate([rows[name].double().numpy() for _, rows in seen])
        for name in seen[0][1]
    }
    mean = np.broadcast_to((p / p.sum(-1, keepdims=True)).mean(0), p.shape)
    with np.errstate(divide="ignore"):
        predictions["constant"] = np.log(mean)
    scores = {"model": result.model} | result.floors
    assert set(predictions) == set(scores)
    for name, log_q in predictions.items():
        metrics = numpy_metrics(p, log_q, targets)
        signed = metrics.pop("signed")
        bias = signed.mean(0)
        metrics["entropy_mae_of_mean"] = signed * np.sign(bias)
        assert set(scores[name].overall) == set(metrics)
        if name == "constant":
            del metrics["accuracy"]  # near-ties of a mean, broken by its rounding
        for metric, values in metrics.items():
            check(scores[name].per_position[metric], values)
            check(scores[name].overall[metric], values.mean(1))
    exact = numpy_metrics(p, np.log(np.where(p > 0, p, 1e-300)), targets)
    check(result.exact.per_position["entropy"], exact["entropy"])
    check(result.exact.overall["accuracy"], exact["accuracy"].mean(1))
    spread = np.abs(exact["entropy"] - np.median(exact["entropy"], 0)).mean()
    assert result.position_entropy_mae == pytest.approx(spread, abs=1e-9)


@pytest.mark.parametrize("task", [BIJECTION, REPEATS, HMM, RECALL], ids=lambda task: task.name)
def test_exact_prediction_has_no_error(task):
    result = run(exactly, task)
    for metric in ("entropy_mae", "entropy_mae_of_mean", "kl", "tvd", "leak"):
        assert abs(result.model.overall[metric].mean) < 1e-9
    excess = result.exact.overall["excess"]
    assert abs(excess.mean) < 4 * excess.se + 1e-9  # the task's own draws are calibrated
    assert "times better than the best floor" in result.verdict()


def test_a_wrong_distribution_of_right_entropy_is_seen():
    """Probabilities in reverse order: the entropy is exact, the prediction is not."""
    result = run(lambda batch: exactly(batch).flip(-1), HMM)
    assert result.model.overall["entropy_mae"].mean < 1e-9
    assert result.model.overall["kl"].mean > 0.1 and result.model.overall["tvd"].mean > 0.1
    assert "NOT better" in result.verdict()


def test_errors_that_cancel_between_sequences():
    """Sharper and flatter predictions in turn: averaging over sequences first hides it."""

    def predict(batch):
        heat = torch.where(torch.arange(len(batch.tokens)) % 2 == 0, 1.3, 0.7)
        return (heat[:, None, None] * exactly(batch)).log_softmax(-1)

    overall = run(predict, HMM, num_sequences=2000).model.overall
    assert overall["entropy_mae"].mean > 0.05
    assert overall["entropy_mae_of_mean"].mean < 0.3 * overall["entropy_mae"].mean


def test_uniform_floor_of_the_papers_task():
    score = run(exactly, tasks.get("bijection", replacement=False), num_sequences=4).floors[
        "uniform"
    ]
    expected = np.mean([math.log2(20) - math.log2(20 - k) for k in range(19)])
    assert score.overall["entropy_mae"].mean == pytest.approx(expected, abs=1e-6)
    assert score.overall["entropy_mae"].mean == pytest.approx(1.107, abs=1e-3)


@pytest.mark.parametrize("task", [BIJECTION, HMM], ids=lambda task: task.name)
def test_verdict_on_a_model_that_learned_nothing(task):
    verdict = run(uniformly, task).verdict()
    assert "NOT better than the floor" in verdict and "times better" not in verdict


def plain_run(task):
    """The configuration of a transformer without a token shift."""
    return {"task": task.name, "task_options": task.options(), "model": "transformer"}


def at_a_floor(task, name):
    return lambda batch: task.floors(batch)[name].double().clamp_min(1e-12).log().log_softmax(-1)


@pytest.mark.parametrize(
    "predict,task,state,words",
    [
        (uniformly, REPEATS, "not trained", ["is not trained: ", "--token-shift input"]),
        (uniformly, HMM, "not trained", ["beat memory-0", "is blind", "--token-shift block"]),
        (uniformly, RECALL, "not trained", ["beat unbound", "--shift-span 2"]),
        (at_a_floor(RECALL, "unbound"), RECALL, "not trained", ["beat unbound"]),
        (at_a_floor(REPEATS, "lookup"), REPEATS, "at lookup", ["does not rule out the values"]),
        (at_a_floor(REPEATS, "unbound"), REPEATS, "at unbound", ["does not bind a key"]),
        (at_a_floor(HMM, "memory-1"), HMM, "at memory-1", ["does not carry the belief on"]),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_a_verdict_at_a_floor_says_what_is_missing_and_what_to_try(predict, task, state, words):
    result = run(predict, task)
    assert result.state() == state
    verdict = result.verdict(plain_run(task))
    assert all(x in verdict for x in [*words, "Try more --steps"])
    assert ("not trained" in verdict) == (state == "not trained")
    assert "Try" not in result.verdict()


@pytest.mark.parametrize("task", [BIJECTION, REPEATS, HMM, RECALL], ids=lambda task: task.name)
def test_a_verdict_on_a_model_that_is_trained_has_no_advice(task):
    result = run(exactly, task)
    assert result.state() == "trained"
    verdict = result.verdict(plain_run(task))
    assert "Try" not in verdict and "not trained" not in verdict


def test_verdict_names_the_trap_of_entropy_by_position():
    assert "judge by the KL" in run(noisily, BIJECTION).verdict()
    assert "judge by the KL" not in run(noisily, REPEATS).verdict()


@pytest.mark.parametrize("memory", [0, 1, 2, 5])
def test_effective_memory_of_a_filter_is_its_memory(memory):
    result = run(lambda batch: HMM.floors(batch)[f"memory-{memory}"].double().log(), HMM)
    read = result.effective_memory
    assert read.observations == pytest.approx(memory, abs=1e-6)
    assert result.best_floor() == "memory-0"


def test_effective_memory_in_words():
    assert "at least 5 observations" in run(exactly, HMM).verdict()
    assert "No use of earlier observations shows" in run(uniformly, HMM).verdict()
    assert run(exactly, BIJECTION).effective_memory is None


def test_read_memory():
    scale = {0: 1.0, 1: 0.1, 2: 0.01, 5: 1e-5}
    assert read_memory(2.0, scale).observations == 0
    assert read_memory(0.1**0.5, scale).observations == pytest.approx(0.5)
    assert read_memory(1e-3, scale).observations == pytest.approx(3)
    best = read_memory(1e-6, scale)
    assert best.observations == 5 and best.at_least


def test_json():
    result = run(noisily, HMM)
    document = result.to_json()
    assert Evaluation.from_json(json.loads(json.dumps(document))) == result
    assert document["task"] == "hmm" and document["options"] == HMM.options()
    assert document["model"]["overall"]["kl"]["mean"] == result.model.overall["kl"].mean
    assert len(document["floors"]["memory-1"]["per_position"]["tvd"]["se"]) == 6
    assert set(document["effective_memory"]) == {"observations", "at_least"}


def test_infinite_kl_is_null_and_no_victory():
    def never_the_first(batch):
        log_q = uniformly(batch)
        log_q[..., 0] = -math.inf
        return log_q.log_softmax(-1)

    result = run(never_the_first, HMM)
    assert result.to_json()["model"]["overall"]["kl"]["mean"] is None
    assert result.model.overall["kl"].mean == math.inf and "NOT better" in result.verdict()


def test_table_is_aligned():
    positions, predictors = run(noisily, HMM).table().split("\n\n")
    lines = positions.splitlines()
    assert len(lines) == 1 + 6 and lines[0].split()[0] == "step"
    assert "kl of memory-0" in lines[0] and len({len(line) for line in lines}) == 1
    names = [line.split()[0] for line in predictors.splitlines()[1:]]
    assert names[:4] == ["model", "exact", "uniform", "constant"]


@pytest.mark.parametrize(
    "room,sampled",
    [(1 << 28, [128, 128, 44]), (40_000, [128, 128, 44, 128, 44]), (0, 2 * [128, 128, 44])],
)
def test_sequences_are_sampled_once_where_they_fit_into_memory(room, sampled, monkeypatch):
    whole = run(noisily, HMM, num_sequences=300)
    sizes, posterior = [], tasks.HMM.posterior

    def counted(self, batch, **options):
        sizes.append(len(batch.tokens))
        return posterior(self, batch, **options)

    monkeypatch.setattr(tasks.HMM, "posterior", counted)
    monkeypatch.setattr("bwt.evaluate.KEPT_BYTES", room)
    assert run(noisily, HMM, num_sequences=300) == whole
    assert sizes == sampled


def test_reproducible_and_seeded():
    one, same, other = (run(noisily, HMM, seed=seed).to_json() for seed in (3, 3, 4))
    assert one == same != other


@pytest.mark.parametrize(
    "predict,message",
    [
        (lambda batch: batch.posterior[:, 1:].log(), "must return [batch, positions, outcomes]"),
        (lambda batch: batch.posterior, "must return log-probabilities; a row of them sums to"),
        (lambda batch: exactly(batch) * math.nan, "a row of them sums to nan"),
    ],
    ids=["shape", "probabilities", "nan"],
)
def test_bad_predictions(predict, message):
    with pytest.raises(ValueError) as error:
        run(predict, BIJECTION)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_bad_sizes():
    with pytest.raises(ValueError, match="num_sequences >= 2"):
        run(exactly, BIJECTION, num_sequences=1)
