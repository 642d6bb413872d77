# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasejax.statistics import accuracy_profile, bootstrap_means, wilson
from phasejax.statistics.trials import check_trials


def test_wilson_known_answer() -> None:
    low, high = wilson(112, 256)
    np.testing.assert_allclose([100 * low, 100 * high], [37.81, 49.87], atol=0.005)


@given(st.integers(1, 400), st.floats(0, 1), st.floats(0.5, 0.999))
@settings(max_examples=40, deadline=None)
def test_wilson_holds_the_proportion_and_mirrors(trials: int, share: float, level: float) -> None:
    hits = round(share * trials)
    low, high = wilson([hits, trials - hits], trials, level)
    assert 0 <= low[0] <= hits / trials <= high[0] <= 1
    np.testing.assert_allclose(low[0], 1 - high[1], atol=1e-12)


@pytest.mark.parametrize(
    ("successes", "trials", "match"),
    [(5, 4, "successes=5"), (0.5, 4, "dtype"), (0, 0, "trials >= 1"), (-1, 4, "successes=-1")],
)
def test_wilson_refuses(successes: float, trials: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        wilson(successes, trials)


def test_profile_of_a_known_table() -> None:
    correct = np.zeros((256, 2))
    correct[:112, 0] = 1
    correct[:200, 1] = 1
    profile = accuracy_profile(correct)
    np.testing.assert_allclose(profile.accuracy, [112 / 256, 200 / 256])
    np.testing.assert_allclose([profile.low[0], profile.high[0]], [0.3781, 0.4987], atol=5e-5)
    assert profile.worst == 112 / 256
    assert profile.worst_low == profile.low[0]
    assert profile.worst_high > profile.high[0]
    assert profile.mean_low < profile.mean < profile.mean_high


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_profile_at_the_ends_is_not_certain(value: float) -> None:
    profile = accuracy_profile(np.full((100, 8), value))
    low, high = wilson(int(100 * value), 100)
    assert profile.mean == value
    np.testing.assert_allclose([profile.mean_low, profile.mean_high], [low, high])
    assert profile.worst_low == pytest.approx(low)
    assert profile.worst_high >= high


def test_fractional_scores_are_rounded_outwards() -> None:
    profile = accuracy_profile(np.full((10, 2), 0.55))
    assert profile.low[0] == wilson(5, 10)[0]
    assert profile.high[0] == wilson(6, 10)[1]


def test_bootstrap_keeps_documents_whole() -> None:
    # Columns that mirror each other within documents must do so in every draw.
    column = np.random.default_rng(0).random(50)
    means = bootstrap_means(np.stack([column, 1 - column], axis=1), 300, 0)
    assert means.shape == (300, 2)
    np.testing.assert_allclose(means.sum(axis=1), 1)
    np.testing.assert_allclose(means[:, 0].std(), column.std() / np.sqrt(50), rtol=0.15)


def test_mean_interval_accounts_for_documents() -> None:
    # All trials of a document agree: 40 documents are 40 trials, not 960.
    correct = np.repeat(np.arange(40)[:, None] % 2, 24, axis=1)
    profile = accuracy_profile(correct)
    low, high = wilson(20, 40)
    assert profile.mean_high - profile.mean_low > 0.8 * (high - low)


class TestRefusals:
    position = np.arange(24) + np.zeros((5, 1), dtype=np.int64)

    def test_missing_trials_name_the_nested_trap(self) -> None:
        correct = np.ones((5, 24))
        correct[2, 3:6] = np.nan
        with pytest.raises(ValueError, match=r"3 missing .* 1 of 5 documents.*57% false"):
            accuracy_profile(correct)

    def test_ragged_rows(self) -> None:
        with pytest.raises(ValueError, match="57% false"):
            accuracy_profile([[0, 1, 1], [0, 1]])  # type: ignore[arg-type]

    def test_shuffled_or_repeated_residues(self) -> None:
        position = self.position.copy()
        position[3, 1] = 0
        with pytest.raises(ValueError, match=r"position\[3\] % 24 = .*57% false"):
            check_trials(np.ones((5, 24)), position)

    @pytest.mark.parametrize("shape", [(24,), (1, 24), (5, 1), (5, 2, 2)])
    def test_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="correct has shape"):
            accuracy_profile(np.ones(shape))

    def test_position_shape_and_dtype(self) -> None:
        with pytest.raises(ValueError, match="position has shape"):
            check_trials(np.ones((5, 24)), self.position[:4])
        with pytest.raises(ValueError, match="dtype float64"):
            check_trials(np.ones((5, 24)), self.position * 1.0)
        with pytest.raises(ValueError, match="minimum -24"):
            check_trials(np.ones((5, 24)), self.position - 24)

    def test_range_level_and_draws(self) -> None:
        with pytest.raises(ValueError, match=r"values in \[2, 2\]"):
            accuracy_profile(np.full((5, 4), 2.0))
        with pytest.raises(ValueError, match="level=95"):
            accuracy_profile(np.ones((5, 4)), level=95.0)
        with pytest.raises(ValueError, match="draws=1"):
            accuracy_profile(np.ones((5, 4)), draws=1)
