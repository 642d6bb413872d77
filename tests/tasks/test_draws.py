# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the draws of a task must not tell: values by keys, places by documents."""

import numpy as np

from phasejax.tasks.crossed import crossed_design
from phasejax.tasks.record_lookup import TaskConfig, draw_content, training_batch

SMALL = TaskConfig(
    num_records=4, context=40, num_keys=9, num_values=5, num_fillers=3, demonstrations=2, residues=8
)
TASK = TaskConfig(num_records=5, context=40, num_keys=9, num_values=6, demonstrations=3, residues=8)


def assert_even(counts: np.ndarray) -> None:
    """Counts differ from their mean by chance alone: 5 standard errors."""
    assert np.abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())


def test_a_key_tells_nothing_of_its_value_nor_of_its_place():
    # Otherwise the answer is known without a lookup, and no cache could hurt it.
    content = draw_content(SMALL, 4000, np.random.default_rng(0))
    key, value = content.keys - SMALL.num_fillers, content.values - 12
    pairs = np.zeros((SMALL.num_keys, SMALL.num_values))
    np.add.at(pairs, (key, value), 1)
    assert_even(pairs)
    for of_records in (key, value):
        for column in of_records.T:
            assert_even(np.bincount(column))
    for query in content.queried.T:
        assert_even(np.bincount(query))


def test_half_of_the_training_prompts_have_prefix_padding():
    tokens = training_batch(SMALL, 2000, 0, 0).tokens[:, : SMALL.context]
    at = np.nonzero(tokens >= SMALL.num_fillers)[1].reshape(2000, -1)
    together = np.ptp(at, axis=1) == SMALL.record_tokens - 1
    assert abs(together.mean() - 0.5) < 0.06  # in-sequence filler leaves records together rarely


def test_filler_is_drawn_anew_for_every_document():
    design = crossed_design(TASK, 120, "in_sequence", 0)
    layouts: dict[tuple, list[tuple]] = {}
    for document, residue, prompts in design.batches(500):
        at = np.nonzero(prompts.tokens[:, : TASK.context] >= TASK.num_fillers)[1]
        for d, r, row in zip(document, residue, at.reshape(len(document), -1), strict=True):
            key = (r, design.content.queried[d, -1], design.shift[d, r])
            layouts.setdefault(key, []).append(tuple(row))
    several = [rows for rows in layouts.values() if len(rows) > 2]
    assert len(several) > 20
    # Were it drawn by residue, all documents of a residue would be laid out alike.
    assert np.mean([len(set(rows)) == len(rows) for rows in several]) > 0.9


def test_guess_accuracy_is_what_a_reader_of_values_alone_reaches():
    rng = np.random.default_rng(3)
    content = draw_content(SMALL, 20_000, rng)
    rows = np.arange(20_000)
    left = np.ones_like(content.values, bool)
    left[rows[:, None], content.queried[:, :-1]] = False  # records that no demonstration solves
    guess = np.argmax(left * rng.random(left.shape), axis=1)
    hit = content.values[rows, guess] == content.values[rows, content.queried[:, -1]]
    assert abs(hit.mean() - SMALL.guess_accuracy) < 0.02
    assert SMALL.guess_accuracy == 1 / 2 + 1 / 2 / 5


def test_as_many_queries_as_records_do_not_give_the_last_answer_away():
    task = TaskConfig(num_records=4, context=40, demonstrations=3, residues=8)
    queried = draw_content(task, 500, np.random.default_rng(0)).queried
    asked_before = (queried[:, :-1] == queried[:, -1:]).any(axis=1)
    assert abs(asked_before.mean() - (1 - 0.75**3)) < 0.12  # distinct ones would never repeat
