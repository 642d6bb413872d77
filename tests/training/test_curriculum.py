# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""When a stage ends, and what the learning rate is."""

import math

import pytest

from phasejax.training.curriculum import Position, advance, is_finished, learning_rate, task_at


@pytest.fixture
def config(tiny):
    return tiny(
        curriculum=((1, 4, 16, 8), (1, 8, 16, 12)),
        final_steps=100,
        checkpoint_every=100,
        learning_rate=0.2,
        warmup_steps=10,
        final_learning_rate=0.1,
        advance_accuracy=0.8,
    )


@pytest.mark.parametrize(
    ("position", "accuracy", "wanted"),
    [
        (Position(4, 0, 4), 0.79, Position(4, 0, 4)),
        (Position(4, 0, 4), 0.8, Position(4, 1, 0)),
        (Position(8, 0, 8), 0.0, Position(8, 1, 0)),
        (Position(9, 1, 8), 0.1, Position(9, 1, 8)),
        (Position(20, 1, 12), 0.1, Position(20, 2, 0)),
        (Position(30, 2, 10), 1.0, Position(30, 2, 10)),
        (Position(120, 2, 100), 1.0, Position(120, 2, 100)),
    ],
)
def test_a_stage_ends_at_the_bar_or_when_its_steps_are_spent(config, position, accuracy, wanted):
    assert advance(config, position, accuracy) == wanted


def test_a_run_ends_with_the_last_step_of_the_task_itself(config):
    assert not is_finished(config, Position(99, 1, 99))
    assert not is_finished(config, Position(119, 2, 99))
    assert is_finished(config, Position(120, 2, 100))


def test_prompts_of_a_stage(config):
    assert task_at(config, 0).span == 4
    assert task_at(config, 1).span == 8
    assert task_at(config, 2) == config.task


def test_the_rate_warms_up_stays_and_falls_in_the_last_stage(config):
    rate = lambda step, stage, stage_step: learning_rate(config, Position(step, stage, stage_step))  # noqa: E731
    assert rate(0, 0, 0) == pytest.approx(0.02)
    assert rate(4, 0, 4) == pytest.approx(0.1)
    assert rate(9, 0, 9) == pytest.approx(0.2)
    assert rate(500, 1, 480) == pytest.approx(0.2)
    assert rate(500, 2, 0) == pytest.approx(0.2)
    assert rate(500, 2, 50) == pytest.approx(0.2 * 0.55)
    assert rate(500, 2, 100) == pytest.approx(0.02)
    quarter = 0.2 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert rate(500, 2, 25) == pytest.approx(quarter)
    # An early last stage still warms up.
    assert rate(4, 2, 0) == pytest.approx(0.1)


def test_a_run_without_curriculum_starts_with_the_task(tiny):
    config = tiny(curriculum=())
    assert task_at(config, 0) == config.task
    assert is_finished(config, Position(24, 0, 24))
