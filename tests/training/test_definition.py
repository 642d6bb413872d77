# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run against its definition, written out once more."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasejax.models.build import init_params, model_structure
from phasejax.tasks.record_lookup import training_batch
from phasejax.training.config import stage_task
from phasejax.training.curriculum import Position
from phasejax.training.loop import train
from phasejax.training.metrics import read_metrics
from phasejax.training.step import make_optimizer, start_state, train_step

pytestmark = pytest.mark.usefixtures("kept_programs")


def test_a_run_takes_the_steps_of_its_config(tiny, tmp_path):
    config = tiny(
        seed=5, advance_accuracy=1.1, curriculum=((1, 4, 14, 8),), final_steps=8,
        b1=0.7, b2=0.9, weight_decay=2.0, clip_norm=0.5, warmup_steps=6, final_learning_rate=0.5,
    )  # fmt: skip
    found = train(config, tmp_path)
    params = init_params(config.model, 5)
    optimizer = make_optimizer(params, b1=0.7, b2=0.9, weight_decay=2.0, clip_norm=0.5)
    state = start_state(params, optimizer)
    step = jax.jit(
        functools.partial(train_step, graph=model_structure(config.model), optimizer=optimizer)
    )
    stage = stage_task(config.task, config.train.stages[0])
    losses = []
    for n in range(16):
        task = stage if n < 8 else config.task
        prompts = training_batch(task, 8, 5, n)
        cosine = 0.5 * (1 + math.cos(math.pi * (n - 8) / 8)) if n >= 8 else 1.0
        rate = 0.02 * min(1.0, (n + 1) / 6) * (0.5 + 0.5 * cosine)
        queries = jnp.asarray(task.query_positions)
        batch = prompts.tokens[None], prompts.answers[None]
        state, metrics = step(state, *batch, queries, jnp.float32(rate))
        losses.append(float(metrics["loss"]))
    wanted = np.reshape(losses, (4, 4)).mean(1)
    np.testing.assert_allclose([row["loss"] for row in read_metrics(tmp_path)], wanted, rtol=1e-4)
    for a, b in zip(*map(jax.tree.leaves, (found.params, state.params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_a_stage_ends_by_the_mean_accuracy_of_a_look(tiny, tmp_path):
    train(tiny(advance_accuracy=1.1, final_steps=8), tmp_path / "never")
    bar = read_metrics(tmp_path / "never")[0]["accuracy"]
    assert 0 < bar < 1
    for name, it, stages in (("at", bar, [0, 1, 1]), ("above", bar + 1e-6, [0, 0, 1, 1])):
        config = tiny(advance_accuracy=it, final_steps=8)
        found = train(config, tmp_path / name)
        assert [row["stage"] for row in read_metrics(tmp_path / name)] == stages
        assert found.position == Position(4 * len(stages), 1, 8)
