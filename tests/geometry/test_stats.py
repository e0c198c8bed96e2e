"""The statistics of the diagnostics, against SciPy, brute force and planted structure."""

import itertools
import math

import numpy as np
import pytest
import torch

from bwt.geometry import clusters, stats
from bwt.geometry.dissociation import spread
from bwt.geometry.keys import gaussian_cosine, mean_cosine
from bwt.geometry.manifold import ordering
from bwt.geometry.probes import fit
from bwt.geometry.settling import fieller


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_correlations_are_those_of_scipy():
    import scipy.stats  # takes a second to load

    x, y = normal(200), normal(200).round()  # with ties
    y = y + (x > 0)
    assert stats.pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic)
    assert stats.spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert stats.pearson(x, torch.ones(200)) is None


def test_what_follows_the_position_alone_has_no_correlation_within():
    """Entropy that is a function of the position: a coordinate that is one too orders it perfectly,
    and nothing can be said about it once the position is held fixed."""
    entropy = torch.linspace(4, 1, 19).expand(50, -1) + 1e-7 * normal(50, 19)
    coordinate = entropy + 0.01 * normal(50, 19)
    assert stats.spearman(coordinate, entropy) > 0.99
    assert stats.pearson_within(coordinate, entropy) is None
    assert stats.spearman_within(coordinate, entropy) is None
    found = ordering(coordinate, entropy)
    assert found.r2.mean > 0.99 and found.r2_within is None


def test_holding_the_position_fixed_removes_what_it_causes_and_nothing_else():
    time = torch.arange(20.0).expand(400, -1)
    cause = normal(400, 20)
    by_position = (time + normal(400, 20), time + normal(400, 20))
    real = (time + cause, time + cause + 0.5 * normal(400, 20))
    for correlation in (stats.pearson_within, stats.spearman_within):
        assert abs(correlation(*by_position)) < 0.04  # 4 standard errors of 8000 pairs
        assert correlation(*real) > 0.85
    assert stats.pearson(*by_position) > 0.9


def test_positions_at_which_nothing_varies_do_not_enter_the_ranks():
    x, y = normal(300, 4), normal(300, 4)
    y[:, :2] = 1.0
    y[:, 2:] = x[:, 2:] ** 3
    assert stats.spearman_within(x, y) == pytest.approx(1)


def test_an_estimate_has_the_standard_error_of_a_mean():
    found = stats.estimate(torch.tensor([1.0, 2.0, 4.0, 5.0]))
    assert found.mean == 3.0 and found.se == pytest.approx(math.sqrt(10 / 3) / 2)


def test_the_jackknife_error_of_a_mean_is_its_standard_error():
    errors = []
    for _ in range(40):
        x = normal(320)
        errors.append(stats.jackknife(lambda x: x.mean().item(), x).se)
    assert np.mean(errors) == pytest.approx(1 / math.sqrt(320), rel=0.1)
    assert stats.jackknife(lambda x: None, normal(8)) is None


def test_the_jackknife_covariance_is_that_of_the_jackknife():
    x = normal(320, 2) @ normal(2, 2)
    found = stats.jackknife_covariance(lambda x: x.mean(0), x)
    for i in range(2):
        alone = stats.jackknife(lambda x: x.mean().item(), x[:, i])
        assert found[i, i].item() == pytest.approx(alone.se**2)
    total = stats.jackknife(lambda x: x.mean().item(), x.sum(1))
    assert found.sum().item() == pytest.approx(total.se**2)


def test_intervals_of_ratios_hold_what_they_should():
    inside = 0
    spread = torch.linalg.cholesky(torch.tensor([[1.0, 0.5], [0.5, 2.0]]).double())
    for _ in range(400):
        y, x = (torch.tensor([24.0, 12.0]).double() + spread @ normal(2)).tolist()
        value, low, high = fieller(y, x, spread @ spread.t())
        assert low < value < high
        inside += low < 2 < high
    assert inside > 400 * 0.96  # 2.5 standard errors: 0.9876
    assert fieller(1.0, 0.1, torch.eye(2)) is None


def test_the_error_of_a_ratio_covers_its_scatter():
    found = [stats.ratio(2 + normal(500), 4 + normal(500)) for _ in range(100)]
    scatter = np.std([f.mean for f in found])
    assert np.mean([f.se for f in found]) == pytest.approx(scatter, rel=0.25)
    assert stats.ratio(torch.zeros(4), torch.zeros(4)) is None


def test_pca_finds_a_planted_line():
    axis = torch.nn.functional.normalize(normal(16), dim=0)
    length = normal(40, 10)
    x = 5 * length[..., None] * axis + 0.1 * normal(40, 10, 16)
    found = stats.pca(x)
    assert found.share[0] > 0.98 and abs(found.axes[0] @ axis) > 0.999
    assert stats.pearson(found(x, 1)[..., 0], length) ** 2 > 0.99
    assert stats.participation(found.share) == pytest.approx(1, abs=0.05)
    assert stats.participation(torch.full((8,), 1 / 8)) == pytest.approx(8)


def test_likeness_of_clouds_ignores_rotation_and_scale():
    x = normal(300, 8)
    turn = torch.linalg.qr(normal(8, 8)).Q
    assert stats.cka(x, 3 * x @ turn) == pytest.approx(1)
    assert stats.cka(x, normal(300, 8)) < 0.1


def test_jensen_shannon():
    p = torch.tensor([[1.0, 0], [0.5, 0.5], [1, 0]])
    q = torch.tensor([[0.0, 1], [0.5, 0.5], [0.5, 0.5]])
    mixed = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)) - 0.5
    assert stats.jensen_shannon(p, q).tolist() == pytest.approx([1, 0, mixed])


@pytest.mark.parametrize("size", [1, 4, 32])
def test_cosine_of_gaussian_vectors(size):
    x, y = normal(2, 100_000, size)
    sampled = torch.nn.functional.cosine_similarity(x, y, -1).abs()
    error = sampled.std() / math.sqrt(len(sampled)) + 1e-9
    assert abs(sampled.mean() - gaussian_cosine(size)) < 4 * error
    if size == 32:
        assert gaussian_cosine(size) == pytest.approx(math.sqrt(2 / math.pi / size), rel=0.01)


def test_mean_cosine_is_that_of_the_pairs_asked_for():
    k = normal(2, 3, 5, 4)
    apart = torch.rand(2, 5, 5) < 0.5
    for b, h in itertools.product(range(2), range(3)):
        pairs = [
            abs(torch.nn.functional.cosine_similarity(k[b, h, i], k[b, h, j], 0).item())
            for i, j in itertools.product(range(5), repeat=2)
            if apart[b, i, j]
        ]
        assert mean_cosine(k, apart)[b, h].item() == pytest.approx(np.mean(pairs))


def test_a_probe_finds_a_planted_direction_on_other_sequences():
    x = normal(80, 12, 10)
    y = x[..., :1] - 2 * x[..., 1:2] + 0.1 * normal(80, 12, 1)
    probe = fit(x, y, within=False)
    found = probe.r2()
    assert abs(found.mean - (1 - 0.01 / 5.01)) < 4 * found.se + 1e-3
    direction = torch.nn.functional.normalize(probe.weight[:, 0], dim=0)
    planted = torch.tensor([1, -2] + [0] * 8) / math.sqrt(5)
    assert direction @ planted.double() > 0.999


def test_a_probe_is_not_scored_on_what_it_was_fitted_to():
    x, y = normal(20, 6, 40), normal(20, 6, 1)  # 60 points in 40 dimensions: it can learn noise
    assert fit(x, y, within=False).r2().mean < 0


def test_a_probe_of_shuffled_labels_finds_nothing():
    x = normal(80, 12, 10)
    y = x[..., :3]
    assert fit(x, y, within=True).r2().mean > 0.99
    shuffled = fit(x, torch.cat((y[torch.randperm(40)], y[40:])), within=True).r2()
    assert shuffled.mean < 3 * shuffled.se


def test_a_probe_within_position_does_not_credit_the_position():
    time = torch.arange(12.0).expand(80, -1)[..., None]
    y = time + normal(80, 12, 1)
    x = torch.cat((time, normal(80, 12, 5)), -1)
    assert fit(x, y, within=False).r2().mean > 0.9
    within = fit(x, y, within=True).r2()
    assert within.mean < 3 * within.se


def test_clusters_are_found_where_there_are_some():
    labels = torch.arange(300) % 4
    centres = 8 * torch.eye(4, 6, dtype=torch.float64)
    x = centres[labels] + normal(300, 6)
    apart = torch.cdist(x, x)
    scores = {k: clusters.silhouette(apart, clusters.k_means(x, k)) for k in range(2, 8)}
    assert max(scores, key=scores.get) == 4 and scores[4] > 0.5
    assert clusters.adjusted_rand(clusters.k_means(x, 4), labels) == 1
    found = clusters.describe(x, labels)
    assert found.clusters == 4 and found.rand == found.rand_given_outcomes == 1
    blob = normal(300, 6)
    assert clusters.silhouette(torch.cdist(blob, blob), clusters.k_means(blob, 4)) < 0.25
    assert abs(clusters.adjusted_rand(clusters.k_means(blob, 4), labels)) < 0.05


def test_points_in_few_places_are_no_more_clusters_than_places():
    labels = torch.arange(60) % 5
    alike = clusters.scores(torch.ones(60, 3, dtype=torch.float64), labels)
    assert (alike.clusters, alike.silhouette, alike.rand) == (1, 0, 0)
    assert alike.rand_given_outcomes == 0
    places = torch.eye(3, dtype=torch.float64)[labels % 3]
    found = clusters.scores(places, labels)
    assert found.clusters == 3 and found.silhouette == pytest.approx(1)


def test_many_outcomes_are_tried_as_clusters():
    labels = torch.arange(300) % 30
    found = clusters.scores(torch.eye(30, dtype=torch.float64)[labels], labels)
    assert found.clusters == 30 and found.rand == found.rand_given_outcomes == 1


def test_silhouette_and_rand_index_by_brute_force():
    x, groups, other = normal(24, 3), torch.arange(24) % 3, torch.randint(4, (24,))
    distance = torch.cdist(x, x)
    scores = []
    for i in range(24):
        own = [distance[i, j] for j in range(24) if j != i and groups[j] == groups[i]]
        rest = [distance[i][groups == g].mean() for g in range(3) if g != groups[i]]
        a, b = np.mean(own), min(rest)
        scores.append((b - a) / max(a, b))
    assert clusters.silhouette(distance, groups) == pytest.approx(np.mean(scores))

    def agree(a, b):
        pairs = itertools.combinations(range(24), 2)
        return np.array([(a[i] == a[j], b[i] == b[j]) for i, j in pairs]).T

    one, two = agree(groups, other)
    expected = one.sum() * two.sum() / len(one)
    want = ((one & two).sum() - expected) / ((one.sum() + two.sum()) / 2 - expected)
    assert clusters.adjusted_rand(groups, other) == pytest.approx(want)


def test_spread_of_the_certain():
    entropy = torch.arange(8.0).repeat(50, 1)
    states = normal(50, 8, 4) * 3
    assert spread(states, entropy) == pytest.approx(1, abs=0.15)
    states[:, :2] = states[:, :2] / 100  # the certain quarter in one place
    assert spread(states, entropy) < 0.05
