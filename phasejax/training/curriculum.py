# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Where a run stands: which stage, how many steps, and when the next stage begins."""

import dataclasses
import math

from phasejax.tasks.record_lookup import TaskConfig
from phasejax.training.config import RunConfig, stage_task


@dataclasses.dataclass(frozen=True)
class Position:
    """A point in training.

    Attributes:
        step: steps taken.
        stage: index of the stage; the last one is the task itself.
        stage_step: steps taken in this stage.
    """

    step: int = 0
    stage: int = 0
    stage_step: int = 0

    def after(self, steps: int) -> "Position":
        """The point some steps later, in the same stage."""
        return Position(self.step + steps, self.stage, self.stage_step + steps)


def task_at(config: RunConfig, stage: int) -> TaskConfig:
    """The prompts of a stage."""
    stages = config.train.stages
    return stage_task(config.task, stages[stage]) if stage < len(stages) else config.task


def is_finished(config: RunConfig, position: Position) -> bool:
    """Whether the last stage is over."""
    train = config.train
    return position.stage == len(train.stages) and position.stage_step >= train.final_steps


def learning_rate(config: RunConfig, position: Position) -> float:
    """Linear warm-up, constant through the curriculum, cosine over the final stage."""
    train = config.train
    rate = train.learning_rate * min(1.0, (position.step + 1) / train.warmup_steps)
    if position.stage < len(train.stages):
        return rate
    cosine = 0.5 * (1 + math.cos(math.pi * position.stage_step / train.final_steps))
    return rate * (train.final_learning_rate + (1 - train.final_learning_rate) * cosine)


def advance(config: RunConfig, position: Position, accuracy: float) -> Position:
    """Moves on if the stage's bar is passed or its steps are spent; one rule for every run."""
    stages = config.train.stages
    if position.stage == len(stages):
        return position
    spent = position.stage_step >= stages[position.stage].max_steps
    if accuracy < config.train.advance_accuracy and not spent:
        return position
    return Position(position.step, position.stage + 1, 0)
