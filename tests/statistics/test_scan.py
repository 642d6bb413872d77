# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from scipy import stats

from phasejax.statistics import DEAD_PHASE, PeriodScan, draw_correct, draw_positions, scan_periods
from phasejax.statistics.periodicity import known_period_test, nuisance_basis
from phasejax.statistics.repetition import repetition_p
from phasejax.statistics.scan import find_period, nested_test


def scan(profile: object, documents: int, seed: int, residues: int = 24) -> PeriodScan:
    position = draw_positions(documents, residues, seed)
    correct = draw_correct(position, profile, seed + 10_000)
    return scan_periods(
        correct, position, permutations=199, nested_permutations=199, nested_level=0.01, seed=seed
    )


def cosine(period: int, amplitude: float) -> np.ndarray:
    return 0.5 + amplitude * np.cos(2 * np.pi * np.arange(period) / period)


def recovered(profile: object, period: int | None, documents: int, runs: int) -> float:
    found = [scan(profile, documents, seed).period for seed in range(runs)]
    return float(np.mean([one == period for one in found]))


@pytest.mark.parametrize("period", [2, 3, 4, 6, 8, 12])
def test_planted_period_is_found(period: int) -> None:
    assert recovered(cosine(period, 0.1), period, 80, 10) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("period", [2, 3, 4, 5, 6, 7, 8, 12])
def test_planted_period_is_found_at_length(period: int) -> None:
    assert recovered(cosine(period, 0.07), period, 400, 50) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("period", [9, 10, 16, 24])
def test_one_low_phase_is_found_at_length(period: int) -> None:
    # A plain cosine of period 24 could not be told from one of 23 over three periods.
    assert recovered([0.1] + [0.5] * (period - 1), period, 400, 50) >= 0.9


def test_dead_phase_has_period_eight() -> None:
    result = scan(DEAD_PHASE, 400, 0)
    # Near misses are significant as well, and so are harmonics and multiples.
    assert {4, 6, 9, 16, 24} <= {
        period
        for period, p in zip(result.periods, result.adjusted_p, strict=True)
        if p <= result.level
    }
    assert recovered(DEAD_PHASE, 8, 150, 15) >= 0.9


def test_period_five_and_seven_need_not_divide_the_residues() -> None:
    for period in (5, 7):
        dip = np.where(np.arange(period) == 1, 0.7, 0.5)
        assert recovered(dip, period, 150, 6) >= 0.8


def test_period_of_incommensurate_parts_is_their_product() -> None:
    # Periods 3 and 4 together: neither alone is the period, and the best fit may be either.
    phase = np.arange(12)
    profile = 0.5 + 0.15 * (phase % 4 == 0) - 0.12 * (phase % 3 == 0)
    assert recovered(profile, 12, 200, 6) >= 0.8


def test_search_climbs_from_a_harmonic_and_descends_from_a_multiple() -> None:
    position = draw_positions(300, 24, 3)
    scores = draw_correct(position, DEAD_PHASE, 5).astype(float)
    nuisance = nuisance_basis(position, True)
    for start in (2, 4, 8, 16, 24):
        assert find_period(scores, position, nuisance, start, range(2, 25), 0.01, 199, 0) == 8


def test_a_divisor_that_explains_nothing_is_not_the_period() -> None:
    # So weak an effect that no multiple of 2 improves the fit of 2 significantly either.
    position = draw_positions(60, 24, 1)
    scores = draw_correct(position, cosine(8, 0.04), 2).astype(float)
    nuisance = nuisance_basis(position, True)
    assert nested_test(scores, position, nuisance, 2, 199, 0)[0] > 0.01
    assert find_period(scores, position, nuisance, 8, [2, 8], 0.01, 199, 0) == 2
    assert find_period(scores, position, nuisance, 8, [8], 0.01, 199, 0) == 8


def test_a_weak_effect_names_no_harmonic() -> None:
    # A plain cosine of period 8 has no part at 2 and 4, which were named before their own test.
    found = [scan(cosine(8, 0.05), 100, seed).period for seed in range(40)]
    named = [period for period in found if period is not None]
    assert len(named) >= 12
    assert np.mean([period in (2, 4) for period in named]) <= 0.1


@pytest.mark.parametrize(("profile", "period"), [(cosine(8, 0.1), 8), (cosine(24, 0.14), 24)])
def test_starts_that_differ_between_documents(profile: np.ndarray, period: int) -> None:
    # Positions spread over many periods tell 24 from 23, which three periods hardly do.
    found = []
    for seed in range(10):
        start = np.random.default_rng(seed).integers(100, 600, 80)
        position = draw_positions(80, 24, seed, start=start)
        correct = draw_correct(position, profile, seed + 400)
        found.append(
            scan_periods(
                correct, position, permutations=199, nested_permutations=199, seed=seed
            ).period
        )
    assert np.mean([one == period for one in found]) >= 0.9


def special_places(seed: int, profile: object, documents: int = 80) -> PeriodScan:
    """A scan where the last tokens before the query are always recalled, and the first never."""
    position = draw_positions(documents, 24, seed)
    correct = draw_correct(position, profile, seed + 700)
    correct = (correct | (position >= position.max() - 11)) & (position > position.min() + 3)
    return scan_periods(correct, position, permutations=199, nested_permutations=199, seed=seed)


def test_what_happens_once_is_no_period() -> None:
    # Permutations within documents alone name one of 24 in most of these runs.
    found = [special_places(seed, [0.5]).period for seed in range(30)]
    assert np.mean([period is None for period in found]) >= 0.9


@pytest.mark.parametrize("profile", [DEAD_PHASE, [0.2, 0.9, 0.9, 0.2]])
def test_places_that_differ_do_not_stretch_the_period(profile: object) -> None:
    found = [special_places(seed, profile, 200).period for seed in range(10)]
    assert found.count(len(profile)) >= 9


def test_a_period_seen_once_is_not_held_to_repeat() -> None:
    position = np.tile(np.arange(24), (60, 1))
    scores = draw_correct(position, [0.1] + [0.5] * 23, 3).astype(float)
    assert repetition_p(scores, position, 12, [24]) == 0.0
    assert repetition_p(scores, position, 4, [8]) > 1e-4


def test_repetition_is_the_f_test_of_position_means() -> None:
    # One trial a document and position: weights are equal, and the fit is plain least squares.
    position = np.tile(np.arange(24), (2, 1)) + np.array([[24], [48]])
    scores = np.random.default_rng(0).random((2, 24))
    y = (scores - scores.mean(axis=1, keepdims=True)).reshape(-1)
    x = position.reshape(-1)

    def left(period: int) -> float:
        design = np.stack([*(x % period == np.arange(period)[:, None]), x, x**2], axis=1)
        return float(np.square(y - design @ np.linalg.lstsq(design, y)[0]).sum())

    f = (left(4) - left(8)) / 4 / (left(8) / (48 - 10))
    assert repetition_p(scores, position, 4, [8]) == pytest.approx(stats.f.sf(f, 4, 38))


def test_null_names_no_period() -> None:
    assert recovered([0.5], None, 40, 100) >= 0.93


@pytest.mark.slow
def test_null_names_no_period_at_length() -> None:
    assert 0.93 <= recovered([0.5], None, 60, 600) <= 0.97


@pytest.mark.parametrize("trend", [0.005, 0.01])
def test_depth_trend_names_no_period(trend: float) -> None:
    found = []
    for seed in range(50):
        position = draw_positions(60, 24, seed)
        correct = draw_correct(position, [0.5], seed + 500, trend=trend)
        found.append(scan_periods(correct, position, permutations=199, seed=seed).period)
    assert np.mean([one is None for one in found]) >= 0.9


@pytest.mark.parametrize(
    ("profile", "period"),
    [
        (DEAD_PHASE, 8),
        ([0.45, 0.55], 2),
        ([0.5, 0.5, 0.5, 0.5, 0.6], 5),
        ([1.0] * 7 + [0.5], 8),  # all noise at one phase, where it must stay under the null
    ],
)
def test_nested_test_holds_its_level_under_an_effect(profile: object, period: int) -> None:
    below = []
    for seed in range(60):
        position = draw_positions(60, 24, seed)
        scores = draw_correct(position, profile, seed + 900).astype(float)
        nuisance = nuisance_basis(position, True)
        below.append(nested_test(scores, position, nuisance, period, 99, seed)[0] <= 0.05)
    assert np.mean(below) <= 0.11


def test_statistic_is_the_tail_of_the_known_period_test() -> None:
    position = draw_positions(100, 24, 0)
    correct = draw_correct(position, cosine(8, 0.1), 1)
    result = scan_periods(correct, position, permutations=99)
    assert result.periods == tuple(range(2, 25))
    for index in (0, 5, 6, 14, 22):
        period = result.periods[index]
        test = known_period_test(correct, position, period, permutations=99)
        assert result.statistic[index] == pytest.approx(-np.log10(test.p_analytic))
        assert result.per_period_p[index] == pytest.approx(test.p_value, abs=0.11)
    assert result.p_value == result.adjusted_p.min() == 0.01
    assert (result.adjusted_p >= result.per_period_p).all()
    again = scan_periods(correct, position, permutations=99)
    np.testing.assert_array_equal(again.adjusted_p, result.adjusted_p)


def test_eight_residues() -> None:
    assert scan(cosine(4, 0.1), 300, 0, residues=8).period == 4


@pytest.mark.filterwarnings("error")
def test_perfect_scores_name_no_period() -> None:
    result = scan([1.0], 50, 0)
    assert (result.p_value, result.period, result.null_quantile) == (1.0, None, 0.0)
    np.testing.assert_array_equal(result.statistic, 0)


def test_one_dead_residue_without_noise() -> None:
    position = draw_positions(50, 24, 0)
    result = scan_periods(position % 8 != 7, position, permutations=199)
    assert result.period == 8
    assert np.isfinite(result.statistic).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"nested_level": 0.001, "nested_permutations": 99}, "nested_permutations=99"),
        ({"level": 5.0}, "level=5"),
    ],
)
def test_refusals(options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        scan_periods(np.ones((5, 24)), draw_positions(5, 24, 0), **options)
