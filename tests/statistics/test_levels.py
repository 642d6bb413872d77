# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Levels of the intervals, against their definitions."""

import numpy as np
import pytest
from scipy import stats

from phasejax.statistics import (
    accuracy_profile,
    draw_correct,
    draw_positions,
    estimate_gap,
    scan_periods,
    wilson,
)


def test_lower_end_of_a_gap_is_at_its_one_sided_level() -> None:
    # Two columns that mirror each other: the range of the errors is 2 |m - 0.75|, so that its
    # 97.5% quantile is that of a normal deviate at 1.25% in each tail.
    column = (np.arange(400) < 300).astype(float)
    gap = estimate_gap(np.stack([column, 1 - column], axis=1), draws=20_000)
    error = 2 * np.sqrt(0.75 * 0.25 / 400) * stats.norm.ppf(1 - 0.025 / 2)
    assert gap.raw == 0.5
    assert gap.low == pytest.approx(0.5 - error, abs=0.004)


def test_interval_of_the_mean_is_the_normal_one_over_documents() -> None:
    correct = np.repeat(np.arange(400)[:, None] % 2, 24, axis=1)
    profile = accuracy_profile(correct, draws=20_000)
    half = stats.norm.ppf(0.975) * 0.5 / np.sqrt(400)
    np.testing.assert_allclose(
        [profile.mean_low, profile.mean_high], [0.5 - half, 0.5 + half], atol=0.003
    )


def test_upper_end_of_the_worst_covers_the_choice_among_all_residues() -> None:
    correct = np.zeros((256, 24))
    correct[:200] = 1
    correct[112:, 5] = 0
    profile = accuracy_profile(correct)
    assert profile.worst_high == pytest.approx(float(wilson(112, 256, 1 - 0.05 / 24)[1]))


def test_line_of_the_scan_is_crossed_by_significant_periods_only() -> None:
    position = draw_positions(60, 24, 3)
    correct = draw_correct(position, [0.5] * 7 + [0.35], 4)
    result = scan_periods(correct, position, permutations=199, level=0.05)
    significant = result.adjusted_p <= 0.05
    assert 0 < significant.sum() < len(significant)
    np.testing.assert_array_equal(result.statistic > result.null_quantile, significant)
