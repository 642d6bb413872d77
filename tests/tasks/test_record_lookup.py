# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Record lookup: what a prompt says and where it says it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasejax.tasks.record_lookup import (
    Prompts,
    TaskConfig,
    assemble,
    draw_content,
    draw_gaps,
    training_batch,
)

SMALL = TaskConfig(
    num_records=4, context=40, num_keys=9, num_values=5, num_fillers=3, demonstrations=2, residues=8
)


def check_prompts(task: TaskConfig, prompts: Prompts) -> None:
    """Every statement about a prompt, read off its tokens alone."""
    tokens = prompts.tokens
    assert tokens.dtype == np.int32
    assert tokens.shape[1] == task.prompt_length
    assert tokens.min() >= 0
    assert tokens.max() < task.vocab_size
    first_key, first_value = task.num_fillers, task.num_fillers + task.num_keys
    is_key = (tokens >= first_key) & (tokens < first_value)
    is_value = tokens >= first_value
    for row, answers, where, keys, values in zip(
        tokens, prompts.answers, prompts.key_positions, is_key, is_value, strict=True
    ):
        key_at = np.flatnonzero(keys[: task.context])
        assert len(key_at) == task.num_records
        assert len(set(row[key_at])) == task.num_records, "keys of a prompt are distinct"
        value_at = key_at + 1 + task.separation
        assert np.array_equal(np.flatnonzero(values[: task.context]), value_at)
        assert key_at[0] >= task.context - task.movable
        record = dict(zip(row[key_at], zip(key_at, row[value_at], strict=True), strict=True))
        queries = task.query_positions
        assert np.array_equal(queries, range(task.context, len(row), 2))
        for query, answer, position in zip(queries, answers, where, strict=True):
            assert record[row[query]] == (position, answer)
        # A solved query is followed by its answer; the last one by nothing.
        assert np.array_equal(row[queries[:-1] + 1], answers[:-1])
        assert queries[-1] == len(row) - 1


@st.composite
def tasks(draw) -> TaskConfig:
    records, separation = draw(st.integers(1, 7)), draw(st.integers(0, 3))
    residues, spare = draw(st.integers(1, 6)), draw(st.integers(0, 9))
    span = records * (2 + separation) + 3 * residues - 1 + spare
    before = draw(st.sampled_from([None, 0, 5]))
    return TaskConfig(
        num_records=records,
        separation=separation,
        context=span + (before or 0),
        span=None if before is None else span,
        num_keys=records + draw(st.integers(0, 4)),
        num_values=draw(st.integers(1, 5)),
        num_fillers=draw(st.integers(1, 4)),
        demonstrations=draw(st.integers(0, 9)),
        residues=residues,
    )


@settings(max_examples=60, deadline=None)
@given(tasks(), st.integers(0, 5), st.integers(0, 10_000))
def test_every_query_is_answered_by_its_record(task, seed, step):
    check_prompts(task, training_batch(task, 5, seed, step))


def test_the_default_is_the_task_of_the_presets():
    task = TaskConfig()
    assert task.prompt_length == 128
    assert task.query_positions.tolist() == list(range(113, 128, 2))
    assert task.vocab_size == 8 + 64 + 64
    check_prompts(task, training_batch(task, 8, 0, 0))


def test_a_batch_is_a_function_of_seed_and_step():
    batch = lambda seed, step: training_batch(SMALL, 16, seed, step)  # noqa: E731
    first, again = batch(3, 7), batch(3, 7)
    for field in dataclasses.fields(Prompts):
        assert np.array_equal(getattr(first, field.name), getattr(again, field.name))
    others = [batch(3, 8), batch(4, 7), batch(7, 3)]
    assert all((first.tokens != other.tokens).mean() > 0.3 for other in others)


def test_queries_of_a_prompt_are_distinct_where_records_suffice():
    prompts = training_batch(SMALL, 64, 0, 0)
    assert all(len(set(row)) == 3 for row in prompts.key_positions)
    few = dataclasses.replace(SMALL, demonstrations=6)
    asked = training_batch(few, 64, 0, 0).key_positions
    # Repeats stand at no fixed distance, and the last query repeats an earlier one not always.
    for distance in range(1, few.num_queries):
        assert not (asked[:, distance:] == asked[:, :-distance]).all()
    assert 0 < np.mean([row[-1] in row[:-1] for row in asked]) < 1


def test_training_shows_the_target_at_every_shift_equally_often():
    counts = np.zeros(SMALL.free + 1)
    for step in range(20):
        prompts = training_batch(SMALL, 400, 0, step)
        lead = SMALL.context - SMALL.movable
        key = SMALL.num_fillers
        is_record = prompts.tokens[:, : SMALL.context] >= key
        target = prompts.key_positions[:, -1]
        before = np.arange(SMALL.context) < target[:, None]
        np.add.at(counts, (~is_record & before).sum(1) - lead, 1)
    expected = counts.sum() / len(counts)
    # 33 cells of 242: a deviation of 5 standard errors is not chance.
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def content_and_target(task: TaskConfig, batch: int, seed: int = 0):
    content = draw_content(task, batch, np.random.default_rng(seed))
    return content, content.queried[:, -1]


@pytest.mark.parametrize("separation", [0, 2])
def test_prefix_padding_moves_all_records_together(separation):
    task = dataclasses.replace(SMALL, separation=separation, context=48)
    content, target = content_and_target(task, task.free + 1)
    before = np.arange(task.free + 1)
    no = np.zeros(len(before), bool)
    prompts = assemble(task, content, draw_gaps(task, before, target, no, np.random.default_rng(1)))
    check_prompts(task, prompts)
    is_key = (prompts.tokens >= task.num_fillers) & (
        prompts.tokens < task.num_fillers + task.num_keys
    )
    for row, shift in zip(is_key, before, strict=True):
        wanted = shift + np.arange(task.num_records) * task.record_length
        assert np.array_equal(np.flatnonzero(row[: task.context]), wanted)


def test_in_sequence_padding_varies_the_gaps_and_places_the_target():
    content, target = content_and_target(SMALL, 400)
    before = np.full(400, 17)
    yes = np.ones(400, bool)
    gaps = draw_gaps(SMALL, before, target, yes, np.random.default_rng(1))
    assert (gaps.sum(1) == SMALL.free).all()
    until = np.arange(SMALL.num_records + 1) <= target[:, None]
    assert ((gaps * until).sum(1) == before).all(), "the target stands where it was asked to"
    for record in range(SMALL.num_records):
        own = gaps[target == record]
        # Filler before the target is spread evenly over the gaps before it; likewise after it.
        sides = ((own[:, : record + 1], 17), (own[:, record + 1 :], SMALL.free - 17))
        for side, filler in sides:
            np.testing.assert_allclose(side.mean(0), filler / side.shape[1], rtol=0.25)
            if side.shape[1] > 1:  # no record keeps its distance to the target
                assert all(len(np.unique(column)) > 3 for column in side.T)
    prompts = assemble(SMALL, content, gaps)
    check_prompts(SMALL, prompts)
    assert np.array_equal(prompts.key_positions[:, -1], before + 2 * target)


def test_fillers_keep_their_order_at_every_shift():
    content, target = content_and_target(SMALL, 1)
    shifts = np.arange(24)
    many = content.take(np.zeros(24, int))
    gaps = draw_gaps(SMALL, shifts, target.repeat(24), shifts % 2 == 1, np.random.default_rng(1))
    tokens = assemble(SMALL, many, gaps).tokens
    seen = {tuple(row[: SMALL.context][row[: SMALL.context] < SMALL.num_fillers]) for row in tokens}
    assert seen == {tuple(content.fillers[0][: SMALL.free])}
    assert (tokens[:, SMALL.context :] == tokens[0, SMALL.context :]).all(), "the queries stay"


def test_a_span_keeps_records_near_the_end():
    narrow = dataclasses.replace(SMALL, context=80, span=40)
    assert (narrow.free, narrow.prompt_length) == (SMALL.free, 85)
    prompts = training_batch(narrow, 32, 0, 0)
    check_prompts(narrow, prompts)
    assert prompts.key_positions.min() >= 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": 30}, r"context=30 is too short: 4 records of 2 tokens.*residues=8 need 31"),
        ({"span": 30}, r"span=30 is too short.*need 31 tokens. Raise span"),
        ({"separation": 3}, r"4 records of 5 tokens.*need 43 tokens"),
        ({"span": 41}, r"span=41 is not within 1 \.\. context=40"),
        ({"span": 0}, r"span=0 is not within"),
        ({"num_keys": 3}, r"num_keys=3 is smaller than num_records=4.*raise num_keys"),
        ({"num_records": 0}, r"num_records=0"),
        ({"num_values": 0}, r"num_values=0"),
        ({"num_fillers": 0}, r"num_fillers=0"),
        ({"residues": 0}, r"residues=0"),
        ({"separation": -1}, r"separation=-1"),
        ({"demonstrations": -1}, r"demonstrations=-1"),
    ],
)
def test_records_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **changes)


def test_the_shortest_context_fits():
    task = dataclasses.replace(SMALL, context=31)
    assert task.free == task.max_shift == 23
