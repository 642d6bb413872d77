# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The crossed design: every document at every residue, positions with equal moments."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasejax.tasks.crossed import (
    SPREAD,
    check_moments,
    crossed_design,
    draw_shifts,
    shift_probabilities,
)
from phasejax.tasks.record_lookup import PADDINGS, TaskConfig, training_batch

TASK = TaskConfig(num_records=5, context=40, num_keys=9, num_values=6, demonstrations=3, residues=8)
paddings = pytest.mark.parametrize("padding", PADDINGS)


def shift_counts(residues: int, documents: int) -> np.ndarray:
    """Documents that take k = -1, 0, +1, by largest remainder, int [M, 3]."""
    exact = shift_probabilities(residues) * documents
    counts = np.floor(exact).astype(int)
    order = np.argsort(-(exact - counts), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return counts + (rank < (documents - counts.sum(1))[:, None])


@given(st.integers(1, 60))
def test_a_shift_has_one_mean_and_one_variance_at_every_residue(residues):
    probability = shift_probabilities(residues)
    assert (probability >= 0).all()
    np.testing.assert_allclose(probability.sum(1), 1, atol=1e-12)
    r, k = np.arange(residues)[:, None], np.array([-1, 0, 1])
    mean = (probability * (r + residues * k)).sum(1)
    square = (probability * (r + residues * k - mean[:, None]) ** 2).sum(1)
    np.testing.assert_allclose(mean, (residues - 1) / 2, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(square, residues**2 * SPREAD, rtol=1e-12)


@pytest.mark.parametrize("residues", [2, 4, 8])
def test_moments_are_exact_for_a_suitable_number_of_documents(residues):
    documents = 8 * residues**2
    counts = shift_counts(residues, documents)
    assert (counts.sum(1) == documents).all()
    for r, row in enumerate(counts.tolist()):
        at = [Fraction(r + residues * k) for k in (-1, 0, 1)]
        mean = sum(n * x for n, x in zip(row, at, strict=True)) / documents
        variance = sum(n * (x - mean) ** 2 for n, x in zip(row, at, strict=True)) / documents
        assert mean == Fraction(residues - 1, 2)
        assert variance == Fraction(residues**2, 2)


@given(st.integers(1, 30), st.integers(1, 500))
def test_counts_are_rounded_to_the_nearest_whole(residues, documents):
    counts = shift_counts(residues, documents)
    assert (counts.sum(1) == documents).all()
    assert (np.abs(counts - documents * shift_probabilities(residues)) < 1).all()


@paddings
def test_every_document_is_seen_at_every_residue(padding):
    documents = 120
    design = crossed_design(TASK, documents, padding, seed=3)
    assert design.position.shape == (documents, 8)
    assert (design.position % 8 == np.arange(8)).all()
    assert design.shift.min() >= 0
    assert design.shift.max() < 24
    seen = []
    for document, residue, prompts in design.batches(50):
        assert len(document) <= 50
        position = prompts.key_positions[:, -1]
        assert np.array_equal(position, design.position[document, residue])
        assert np.array_equal(position % 8, residue)
        seen += zip(document.tolist(), residue.tolist(), strict=True)
        # The target is where the query's key stands, and its value is the answer.
        rows = np.arange(len(position))
        assert np.array_equal(prompts.tokens[rows, position], prompts.tokens[:, -1])
        assert np.array_equal(prompts.tokens[rows, position + 1], prompts.answers[:, -1])
        # No demonstration gives the answer away.
        asked = prompts.tokens[:, TASK.query_positions]
        assert not (asked[:, :-1] == asked[:, -1:]).any()
    assert seen == [(d, r) for d in range(documents) for r in range(8)]


@pytest.mark.parametrize("records", [9, 20])
def test_no_demonstration_asks_for_the_target_however_few_records_there_are(records):
    # Its answer would stand within the exact tokens, and no cache would be asked.
    task = TaskConfig(num_records=records, context=70, demonstrations=7, residues=8)
    queried = crossed_design(task, 120, "prefix", seed=3).content.queried
    assert not (queried[:, :-1] == queried[:, -1:]).any()
    with pytest.raises(ValueError, match="num_records=8, but with demonstrations=7"):
        crossed_design(dataclasses.replace(task, num_records=8), 120, "prefix", seed=3)


def test_targets_are_spread_over_the_records():
    design = crossed_design(TASK, 120, "prefix", seed=3)
    assert np.bincount(design.content.queried[:, -1]).tolist() == [24] * 5


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(0, 7), st.integers(1, 3), st.sampled_from(PADDINGS))
def test_no_prompt_is_answered_without_a_lookup(records, demonstrations, values, padding):
    task = TaskConfig(
        num_records=records,
        demonstrations=demonstrations,
        num_values=values,
        context=40,
        residues=8,
    )
    if values < 2 or records < demonstrations + 2:
        with pytest.raises(ValueError, match=r"num_(records|values)=\d, but with .*[Rr]aise"):
            crossed_design(task, 16, padding, seed=3)
        return
    queried = crossed_design(task, 16, padding, seed=3).content.queried
    # Neither solved by a demonstration nor the only record that none solves.
    assert not (queried[:, :-1] == queried[:, -1:]).any()
    assert all(len(set(row)) < records for row in queried.tolist())
    assert task.guess_accuracy < 1


@paddings
def test_a_document_says_the_same_at_every_residue(padding):
    design = crossed_design(TASK, 64, padding, seed=1)
    for _, _, prompts in design.batches(8):  # one document a batch
        tokens = prompts.tokens
        context = tokens[:, : TASK.context]
        assert len(np.unique(tokens[:, TASK.context :], axis=0)) == 1
        for keep in (context < TASK.num_fillers, context >= TASK.num_fillers):
            said = [row[kept] for row, kept in zip(context, keep, strict=True)]
            assert all(np.array_equal(row, said[0]) for row in said)


@pytest.mark.parametrize("residues", [6, 8, 24])
@pytest.mark.parametrize("records", [1, 2, 5, 8, 20])
@pytest.mark.parametrize("documents", [16, 97, 400])
def test_moments_are_nearly_equal_whatever_the_numbers(documents, records, residues):
    offsets = 2 * (np.arange(documents) % records)
    for seed in range(2):
        shift = draw_shifts(offsets, residues, np.random.default_rng(seed))
        assert shift.min() >= 0
        assert shift.max() < 3 * residues
        assert ((offsets[:, None] + shift) % residues == np.arange(residues)).all()
        found = check_moments(offsets[:, None] + shift)
        # A step is what one document more or less at k changes.
        assert found.mean_spread <= 3 * residues / documents
        assert found.deviation_spread <= 3 * residues / documents
        wanted = np.sqrt(residues**2 * SPREAD + offsets.var())
        assert abs(found.deviation - wanted) < 2 * residues / documents


def test_moments_hold_for_every_kind_of_prompt_that_the_presets_use():
    task = TaskConfig()
    design = crossed_design(task, 400, "prefix", 20_000)
    found = check_moments(design.position)
    assert found.mean_spread < 0.2
    assert found.deviation_spread < 0.2


def test_a_design_without_matched_moments_is_refused():
    offsets = 2 * (np.arange(400) % 20)
    r = (np.arange(24) - offsets[:, None]) % 24
    with pytest.raises(
        ValueError, match=r"moments differ.*means by 23\.00 .* 400 documents allow 0\.18"
    ):
        check_moments(np.zeros((400, 1), int) + np.arange(24))  # k = 0 throughout, one offset
    rng = np.random.default_rng(0)
    uneven = np.repeat([[0], [2]], 200, axis=0) + np.zeros(24, int)
    uneven[:, :12] = 1  # equal means, unequal variances
    position = 24 * uneven + 11
    with pytest.raises(
        ValueError, match=r"moments differ.*means by 0\.00 and deviations by 24\.00 tokens"
    ):
        check_moments(position)
    check_moments(offsets[:, None] + draw_shifts(offsets, 24, rng))
    with pytest.raises(ValueError, match="moments differ"):
        check_moments(r)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(4, 8), st.integers(10, 60), st.sampled_from(PADDINGS))
def test_any_design_is_crossed(separation, records, documents, padding):
    task = TaskConfig(
        num_records=records,
        separation=separation,
        context=60,
        num_keys=10,
        demonstrations=2,
        residues=6,
    )
    design = crossed_design(task, documents, padding, 0)
    assert (design.position % 6 == np.arange(6)).all()
    positions = np.concatenate([p.key_positions[:, -1] for _, _, p in design.batches(64)])
    assert np.array_equal(positions, design.position.ravel())


@paddings
def test_a_design_is_a_function_of_its_arguments(padding):
    def tokens(seed: int, batch: int = 96) -> np.ndarray:
        design = crossed_design(TASK, 120, padding, seed)
        return np.concatenate([prompts.tokens for _, _, prompts in design.batches(batch)])

    assert np.array_equal(tokens(5), tokens(5))
    assert np.array_equal(tokens(5), tokens(5, batch=7)), "prompts depend on the size of a batch"
    assert not np.array_equal(tokens(5), tokens(6))


def test_in_sequence_padding_breaks_the_lockstep_of_phases():
    def key_phases(padding: str) -> np.ndarray:
        design = crossed_design(TASK, 120, padding, 0)
        tokens = np.concatenate([p.tokens for _, _, p in design.batches(500)])[:, : TASK.context]
        is_key = (tokens >= TASK.num_fillers) & (tokens < TASK.num_fillers + TASK.num_keys)
        at = np.nonzero(is_key)[1].reshape(-1, TASK.num_records)
        return (at - design.position.reshape(-1, 1)) % 8

    assert (np.ptp(key_phases("prefix").reshape(120, 8, -1), axis=1) == 0).all()
    moved = np.ptp(key_phases("in_sequence").reshape(120, 8, -1), axis=1)
    assert (moved > 0).mean() > 0.7  # all but the target itself


@paddings
def test_evaluation_does_not_repeat_training_of_the_same_seed(padding):
    def keys_of(tokens: np.ndarray) -> np.ndarray:
        context = tokens[:, : TASK.context]
        is_key = (context >= TASK.num_fillers) & (context < TASK.num_fillers + TASK.num_keys)
        return context[is_key].reshape(-1, TASK.num_records)

    evaluated = crossed_design(TASK, 120, padding, 0).content.keys
    for step in range(4):
        trained = keys_of(training_batch(TASK, 120, 0, step).tokens)
        assert (trained == evaluated).mean() < 0.2  # 1 in 9 by chance
