# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from phasejax.statistics import draw_correct, draw_positions, known_period_test
from phasejax.statistics.folding import orthonormal, phase_columns
from phasejax.statistics.periodicity import compare, log_tail, nuisance_basis, residual_of
from phasejax.statistics.resampling import permuted_sums, rotation_states, state_scores


def dummy_regression_f(scores: np.ndarray, position: np.ndarray, period: int, trend: bool) -> float:
    """F from two least-squares fits with one indicator per document, the textbook way."""
    documents, residues = scores.shape
    null = [np.repeat(np.eye(documents), residues, axis=0)]
    if trend:
        t = position.ravel() - position.mean()
        null.append(np.stack([t, t**2], axis=1))
    small = np.concatenate(null, axis=1)
    full = np.concatenate([small, np.eye(period)[position.ravel() % period]], axis=1)
    y = scores.ravel()
    rss, rank = [], []
    for design in (small, full):
        weights, _, r, _ = np.linalg.lstsq(design, y, rcond=None)
        rss.append(np.square(y - design @ weights).sum())
        rank.append(r)
    return (rss[0] - rss[1]) / (rank[1] - rank[0]) / (rss[1] / (y.size - rank[1]))


class TestStatistic:
    @pytest.mark.parametrize("trend", [False, True])
    @pytest.mark.parametrize("period", [2, 5, 7, 8, 16, 24])
    def test_equals_the_regression_with_document_indicators(self, period: int, trend: bool) -> None:
        position = draw_positions(20, 24, 0, design="drift")
        scores = draw_correct(position, [0.5, 0.6, 0.4], 1, trend=0.01).astype(float)
        test = known_period_test(scores, position, period, permutations=1, remove_trend=trend)
        assert test.df == period - 1
        assert test.df_residual == 480 - 20 - 2 * trend - period + 1
        expected = dummy_regression_f(scores, position, period, trend)
        assert test.statistic == pytest.approx(expected, rel=1e-9)
        analytic = stats.f.sf(expected, test.df, test.df_residual)
        assert test.p_analytic == pytest.approx(analytic)

    def test_all_residues_give_cochrans_q(self) -> None:
        position = draw_positions(60, 8, 0)
        scores = draw_correct(position, [0.5, 0.7, 0.4], 1).astype(float)
        column, row = scores.sum(axis=0), scores.sum(axis=1)
        q = 8 * 7 * np.square(column - column.mean()).sum() / (row * (8 - row)).sum()
        test = known_period_test(scores, position, 8, permutations=1, remove_trend=False)
        assert test.explained * 60 * 7 == pytest.approx(q)

    def test_profile_of_noiseless_scores(self) -> None:
        position = draw_positions(30, 24, 0)
        phase = 2 * np.pi * (position % 8) / 8
        wave = 0.5 + 0.1 * np.cos(phase) + 0.03 * np.sin(2 * phase)
        test = known_period_test(wave, position, 8, permutations=9)
        np.testing.assert_allclose(test.profile[position % 8], wave - 0.5, atol=1e-9)

    def test_phase_shift_moves_the_profile(self) -> None:
        position = draw_positions(400, 24, 0)
        accuracy = np.array([0.9] * 7 + [0.2])
        test = known_period_test(draw_correct(position, accuracy, 1), position, 8, permutations=9)
        np.testing.assert_allclose(test.profile, accuracy - accuracy.mean(), atol=0.05)

    @given(st.integers(0, 10**6), st.integers(3, 20), st.integers(2, 8))
    @settings(max_examples=30, deadline=None)
    def test_invariances(self, seed: int, documents: int, period: int) -> None:
        rng = np.random.default_rng(seed)
        position = draw_positions(documents, 8, seed)
        scores = rng.random((documents, 8))
        test = known_period_test(scores, position, period, permutations=1)
        order = rng.permutation(documents)
        for other, where in (
            (scores[order], position[order]),
            (1 - 3 * scores, position),
            (scores + 100 * rng.random((documents, 1)), position),
            (scores + 0.01 * position - 1e-4 * (position - 480.0) ** 2, position),
        ):
            twin = known_period_test(other, where, period, permutations=1)
            assert twin.statistic == pytest.approx(test.statistic, rel=1e-6)

    @given(st.integers(0, 10**6), st.integers(3, 20), st.integers(2, 8), st.integers(1, 30))
    @settings(max_examples=30, deadline=None)
    def test_moving_all_targets_changes_nothing(
        self, seed: int, documents: int, period: int, tokens: int
    ) -> None:
        position = draw_positions(documents, 8, seed)
        scores = np.random.default_rng(seed).random((documents, 8))
        moved = np.roll(position + tokens, tokens, axis=1)  # column r holds residue r again
        rolled = np.roll(scores, tokens, axis=1)
        test = known_period_test(scores, position, period, permutations=49, seed=seed)
        twin = known_period_test(rolled, moved, period, permutations=49, seed=seed)
        assert twin.statistic == pytest.approx(test.statistic, rel=1e-6)
        assert twin.p_value == pytest.approx(test.p_value, abs=0.021)  # one tie in float32
        np.testing.assert_allclose(np.roll(test.profile, tokens), twin.profile, atol=1e-6)

    def test_tail_agrees_with_scipy_and_goes_on_below_doubles(self) -> None:
        f = np.array([0.0, 0.5, 3.0, 80.0, 200.0])
        expected = -stats.f.logsf(f, 7, 9191) / np.log(10)
        np.testing.assert_allclose(log_tail(f, np.array(7), np.array(9191)), expected, rtol=1e-9)
        mixed = log_tail(np.append(f, 250.0), np.array(7), np.array(9191))
        np.testing.assert_allclose(mixed[:5], expected, rtol=1e-9)
        tail = log_tail(np.array([205.0, 215.0, 225.0, 4000.0]), np.array(7), np.array(9191))
        step = np.diff(tail[:3])
        assert tail[0] < 290 < tail[2]  # on both sides of the switch between the formulas
        assert step[0] == pytest.approx(step[1], rel=0.03)
        assert np.isfinite(tail).all()


class TestRotation:
    def test_one_class_gives_the_circular_shifts(self) -> None:
        states = rotation_states(np.zeros((3, 5), dtype=np.int64))
        assert states.shape == (3, 5, 5)
        for shift in range(5):
            np.testing.assert_array_equal(states[1, shift], np.roll(np.arange(5), -shift))

    def test_classes_of_a_divisor_give_shifts_by_its_multiples(self) -> None:
        states = rotation_states(np.tile(np.arange(24) % 8, (2, 1)))
        assert states.shape == (2, 3, 24)
        np.testing.assert_array_equal(states[0, 1], np.roll(np.arange(24), -8))

    @pytest.mark.parametrize("period", [5, 7, 9, 11])
    def test_other_classes_are_kept_and_mixed_evenly(self, period: int) -> None:
        classes = draw_positions(4, 24, 0) % period
        states = rotation_states(classes)
        for document, state in enumerate(states):
            np.testing.assert_array_equal(state[0], np.arange(24))
            kept = classes[document][state]
            np.testing.assert_array_equal(kept, np.broadcast_to(classes[document], kept.shape))
            for row in state:
                np.testing.assert_array_equal(np.sort(row), np.arange(24))
            for column in range(24):
                size = (classes[document] == classes[document, column]).sum()
                counts = np.bincount(state[:, column])[
                    np.flatnonzero(np.bincount(state[:, column]))
                ]
                assert len(counts) == size
                assert counts.max() - counts.min() <= 1

    def test_documents_are_permuted_independently(self) -> None:
        # Selection of states must give the projections of explicitly shifted scores.
        rng = np.random.default_rng(0)
        values = rng.standard_normal((6, 4))
        position = draw_positions(6, 4, 0)
        basis = orthonormal(phase_columns(position, 3), np.zeros((24, 0)))
        np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-12)
        states = rotation_states(np.zeros_like(position))
        scores = state_scores(values, states, basis)
        sums = np.concatenate(list(permuted_sums(scores, 6, 50, 7)))
        shifts = np.random.default_rng(7).integers(0, 4, size=(50, 6), dtype=np.int32)
        assert len(np.unique(shifts, axis=0)) == 50
        for drawn, shift in zip(sums, shifts, strict=True):
            moved = np.stack([np.roll(row, -s) for row, s in zip(values, shift, strict=True)])
            np.testing.assert_allclose(drawn, basis.T @ moved.ravel(), atol=1e-5)


def test_permuted_statistics_are_those_of_the_joint_regression() -> None:
    # With a trend removed, rotated scores are no longer free of the trend: the regression of every
    # rotation explains it before the phases. Three documents have 6 ** 3 rotations, all drawn.
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((3, 6)) + 0.5 * np.arange(6)
    position = draw_positions(3, 6, 1, design="drift")
    nuisance = nuisance_basis(position, True)
    result = compare(
        scores, nuisance, [phase_columns(position, 3)], np.zeros_like(position), 4000, 0
    )
    rest = residual_of(scores, nuisance)
    expected = []
    for shifts in itertools.product(range(6), repeat=3):
        moved = np.stack([np.roll(row, -shift) for row, shift in zip(rest, shifts, strict=True)])
        expected.append(dummy_regression_f(moved, position, 3, trend=True))
    distance = np.abs(result.permuted - np.array(expected)) / (1 + np.array(expected))
    assert distance.min(axis=1).max() < 1e-4  # what was drawn is the statistic of a rotation
    assert distance.min(axis=0).max() < 1e-4  # and every rotation was drawn


def rejections(runs: int, documents: int, period: int, **options: object) -> float:
    """Share of p <= 0.05 without a phase effect."""
    design = options.pop("design", "matched")
    trend = options.pop("trend", 0.0)
    profile = options.pop("profile", [0.5])
    share = options.pop("document_variance", 0.6)
    hits = 0
    for seed in range(runs):
        position = draw_positions(documents, 24, seed, design=design)  # type: ignore[arg-type]
        correct = draw_correct(
            position,
            profile,
            seed + 10**6,
            document_variance=share,  # type: ignore[arg-type]
            trend=trend,  # type: ignore[arg-type]
        )
        test = known_period_test(
            correct,
            position,
            period,
            permutations=199,
            seed=seed,
            **options,  # type: ignore[arg-type]
        )
        hits += test.p_value <= 0.05
    return hits / runs


class TestTypeOne:
    @pytest.mark.parametrize(("period", "accuracy"), [(8, 0.5), (8, 0.97), (7, 0.5)])
    def test_strong_document_effects(self, period: int, accuracy: float) -> None:
        rate = rejections(400, 30, period, profile=[accuracy])
        assert 0.03 <= rate <= 0.07

    def test_another_period_is_no_effect(self) -> None:
        # Period 8 is real; period 3, orthogonal to it over 24 residues, is not.
        rate = rejections(200, 40, 3, profile=[0.5] * 7 + [0.98], remove_trend=False)
        assert rate <= 0.07

    @pytest.mark.parametrize("trend", [0.005, 0.01])
    @pytest.mark.parametrize(
        ("design", "remove"), [("matched", False), ("matched", True), ("drift", True)]
    )
    def test_depth_trend(self, trend: float, design: str, remove: bool) -> None:
        rate = rejections(200, 60, 8, design=design, remove_trend=remove, trend=trend)
        assert 0.02 <= rate <= 0.08

    @pytest.mark.parametrize(("trend", "least"), [(0.005, 0.2), (0.01, 0.6)])
    def test_depth_trend_inflates_without_either(self, trend: float, least: float) -> None:
        options = {"design": "drift", "remove_trend": False, "document_variance": 0.3}
        assert rejections(40, 400, 8, trend=trend, **options) >= least


class TestPower:
    @pytest.mark.parametrize("period", [2, 3, 4, 6, 8, 12])
    def test_planted_cosine(self, period: int) -> None:
        # Noncentrality 100 * 24 * 0.07^2 / (2 * 0.25) = 23.5 for an independent sample.
        profile = 0.5 + 0.07 * np.cos(2 * np.pi * np.arange(period) / period)
        hits = [
            known_period_test(
                draw_correct(position, profile, seed + 77), position, period, permutations=199
            ).p_value
            <= 0.05
            for seed in range(20)
            for position in [draw_positions(100, 24, seed)]
        ]
        assert np.mean(hits) >= 0.8


class TestDesign:
    @pytest.mark.parametrize("design", ["matched", "drift"])
    def test_positions_of_a_start_per_document(self, design: str) -> None:
        start = np.arange(24, 24 + 400)
        position = draw_positions(400, 24, 0, start=start, design=design)  # type: ignore[arg-type]
        np.testing.assert_array_equal(position % 24, np.tile(np.arange(24), (400, 1)))
        offset = position - start[:, None]
        assert offset.min() >= -24
        assert offset.max() < 48

    def test_matched_moments(self) -> None:
        position = draw_positions(40_000, 24, 0)
        np.testing.assert_allclose(position.mean(axis=0), 480 + 11.5, atol=0.4)
        np.testing.assert_allclose(position.std(axis=0), 24 / np.sqrt(2), rtol=0.02)
        drift = draw_positions(40_000, 24, 0, design="drift").mean(axis=0)
        np.testing.assert_allclose(drift, 480 + np.arange(24), atol=0.5)

    def test_start_is_refused(self) -> None:
        with pytest.raises(ValueError, match="start=23"):
            draw_positions(5, 24, 0, start=23)


class TestEdges:
    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("scores", [np.ones((40, 24)), np.eye(40, 1) * np.ones(24)])
    def test_no_variance_within_documents(self, scores: np.ndarray) -> None:
        test = known_period_test(scores, draw_positions(40, 24, 0), 8, permutations=99)
        assert (test.statistic, test.p_value, test.p_analytic) == (0.0, 1.0, 1.0)
        np.testing.assert_array_equal(test.profile, 0)

    def test_noiseless_profile_is_finite(self) -> None:
        position = draw_positions(40, 24, 0)
        test = known_period_test(position % 8 == 7, position, 8, permutations=199)
        assert test.p_value == 1 / 200
        assert np.isfinite(test.statistic)
        assert test.explained == pytest.approx(1)

    def test_trend_that_is_the_residue_takes_its_degree_of_freedom(self) -> None:
        position = np.tile(np.arange(480, 504), (40, 1))  # no spread of depth within a residue
        scores = draw_correct(position, [0.5], 0)
        assert known_period_test(scores, position, 24, permutations=9).df == 21

    @pytest.mark.parametrize(
        ("period", "options", "match"),
        [
            (1, {}, "period=1, but it must be between 2 and 24"),
            (25, {}, "period=25"),
            (8, {"permutations": 0}, "permutations=0"),
        ],
    )
    def test_refusals(self, period: int, options: dict, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            known_period_test(np.ones((5, 24)), draw_positions(5, 24, 0), period, **options)
