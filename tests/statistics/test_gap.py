# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasejax.statistics import DEAD_PHASE, Gap, draw_correct, draw_positions, estimate_gap, wilson
from phasejax.statistics.gap import cross_fitted, fold, pairwise_upper


def planted(profile: object, documents: int, seed: int, residues: int = 24) -> np.ndarray:
    position = draw_positions(documents, residues, seed)
    return draw_correct(position, np.asarray(profile), seed + 10_000)


def test_raw_folded_and_subset_gaps_of_a_known_table() -> None:
    # Residue accuracies 1, 0, .5, .5 (best 0, worst 1); folded to two phases .75, .25.
    correct = np.array([[1, 0, 1, 0], [1, 0, 0, 1], [1, 0, 1, 0], [1, 0, 0, 1]])
    gap = estimate_gap(correct)
    assert (gap.raw, gap.best, gap.worst, gap.columns) == (1.0, 0, 1, (0, 1, 2, 3))
    folded = estimate_gap(correct, period=2)
    assert (folded.raw, folded.best, folded.worst, folded.columns) == (0.5, 0, 1, (0, 1))
    subset = estimate_gap(correct, phases=[1, 3])
    assert (subset.raw, subset.best, subset.worst, subset.columns) == (0.5, 3, 1, (1, 3))


def test_fold_averages_residues_of_the_same_phase() -> None:
    correct = np.zeros((50, 24))
    correct[:, [3, 11, 19]] = 1  # phase 3 of 8
    gap = estimate_gap(correct, period=8)
    assert (gap.raw, gap.best) == (1.0, 3)
    assert estimate_gap(correct, period=6).raw == pytest.approx(0.25)


def test_dead_phase_and_its_straddle_free_part() -> None:
    correct = planted(DEAD_PHASE, 400, 0)
    gap = estimate_gap(correct, period=8)
    assert gap.worst == 7
    assert gap.low < 0.88 < gap.high
    assert gap.corrected == pytest.approx(0.88, abs=0.03)
    free = estimate_gap(correct, period=8, phases=range(7))
    assert free.low < 0.36 < free.high < gap.low


@pytest.mark.parametrize("documents", [20, 200, 2000])
def test_perfect_scores_do_not_prove_a_gap_of_zero(documents: int) -> None:
    gap = estimate_gap(np.ones((documents, 24)))
    assert gap.raw == gap.corrected == gap.low == gap.null_expectation == 0
    assert gap.high == pytest.approx(1 - wilson(documents, documents)[0])
    assert 3 / documents < gap.high < 4 / documents
    # Three perfect residues behind each phase count as one: they may depend on the document.
    assert estimate_gap(np.ones((documents, 24)), period=8).high == pytest.approx(gap.high)


def test_null_expectation_is_that_of_independent_binomials() -> None:
    # 24 equal binomials with n = 1000 have an expected range of 6.2 points at p = 0.5.
    correct = np.random.default_rng(0).random((1000, 24)) < 0.5
    assert 100 * estimate_gap(correct).null_expectation == pytest.approx(6.2, abs=0.25)


def test_cross_fitting_removes_the_bias() -> None:
    raw, fitted = [], []
    for seed in range(150):
        correct = planted([0.5], 150, seed, residues=8).astype(float)
        raw.append(np.ptp(correct.mean(axis=0)))
        fitted.append(cross_fitted(correct, seed))
    assert np.mean(raw) > 0.08
    assert abs(np.mean(fitted)) < 3 * np.std(fitted) / np.sqrt(150) < 0.02


def test_upper_end_of_one_pair_is_newcombes() -> None:
    # Newcombe (1998), method 10 without continuity correction, 36/50 against 24/50: with the
    # correlation phi of the paired table, from its printed formula.
    values = np.zeros((50, 2))
    values[:20] = 1
    values[20:36, 0] = 1
    values[36:40, 1] = 1
    low, high = wilson([36, 24], 50)
    up, down = high[0] - 0.72, 0.48 - low[1]
    phi = (20 * 10 - 16 * 4) / np.sqrt(36 * 14 * 24 * 26)
    expected = 0.24 + np.sqrt(up**2 + down**2 - 2 * phi * up * down)
    assert pairwise_upper(values, 1, 0.95) == pytest.approx(expected)


def test_residues_of_a_phase_count_as_trials_of_their_own() -> None:
    # Independent residues: three a phase leave a third of the variance of one.
    correct = np.random.default_rng(0).random((400, 24)) < 0.5
    values = fold(correct.astype(float), 8)
    gap = estimate_gap(correct, period=8)
    assert gap.high == pairwise_upper(values, 3, 0.95)
    narrow, wide = gap.high - gap.raw, pairwise_upper(values, 1, 0.95) - gap.raw
    assert narrow == pytest.approx(wide / np.sqrt(3), rel=0.1)


@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(2, 9), st.booleans())
@settings(max_examples=40, deadline=None)
def test_gap_invariances(seed: int, documents: int, residues: int, binary: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.random((documents, residues))
    scores = np.round(scores) if binary else scores
    gap = estimate_gap(scores, draws=50)
    for other in (
        scores[rng.permutation(documents)],
        scores[:, rng.permutation(residues)],
        1 - scores,
        np.roll(scores, 1, axis=1),
    ):
        twin = estimate_gap(other, draws=50)
        assert twin.raw == pytest.approx(gap.raw)
        assert twin.high == pytest.approx(gap.high)
    assert 0 <= gap.low <= gap.corrected <= gap.high <= 1
    assert gap.low <= gap.raw <= gap.high


def coverage(profile: object, truth: float, runs: int, documents: int, **options: Any) -> Gap:
    """Shares of the runs whose ends miss the true gap, in the fields low and high."""
    gaps = [
        estimate_gap(planted(profile, documents, seed), draws=200, seed=seed, **options)
        for seed in range(runs)
    ]
    below = float(np.mean([gap.low > truth + 1e-9 for gap in gaps]))
    above = float(np.mean([gap.high < truth - 1e-9 for gap in gaps]))
    assert below + above <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / runs), (below, above)
    return gaps[0]


MILD = 0.5 + 0.05 * np.cos(np.pi * np.arange(8) / 4)
CASES = [
    ([0.5], 0.0),
    ([0.99], 0.0),
    ([1.0], 0.0),
    (MILD, 0.1),
    ([0.2, 0.2, 0.2, 0.3], 0.1),
    ([1, 1, 1, 0.98], 0.02),
    (DEAD_PHASE, 0.88),
]


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize(("profile", "truth"), CASES)
def test_interval_covers_the_true_gap(profile: object, truth: float, folded: bool) -> None:
    coverage(profile, truth, 40, 120, **({"period": 8} if folded else {}))


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "truth"), CASES)
def test_interval_covers_the_true_gap_at_length(profile: object, truth: float) -> None:
    coverage(profile, truth, 400, 400, period=8)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"period": 16}, "period=16 does not divide the 24"),
        ({"period": 25}, "period=25"),
        ({"period": 8, "phases": [8, 0]}, r"phases=\(8, 0\)"),
        ({"phases": [3]}, r"phases=\(3,\)"),
        ({"phases": [3, 3]}, r"phases=\(3, 3\)"),
        ({"level": 1.0}, "level=1"),
    ],
)
def test_refusals(options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        estimate_gap(np.ones((5, 24)), **options)


def test_scores_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(ValueError, match="rescale"):
        estimate_gap(np.full((5, 4), -0.5))
