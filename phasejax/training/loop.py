# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The training loop: stages, checkpoints, metrics, resume.

The same call again continues where the last one stopped, bit for bit: prompts are a function of
(seed, step), and checkpoints fall on steps where nothing else is pending.
"""

import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from phasejax.checkpoints.store import CheckpointStore
from phasejax.models.build import (
    Params,
    abstract_params,
    compiler_options,
    init_params,
    model_structure,
)
from phasejax.tasks.record_lookup import training_batch
from phasejax.training.config import RunConfig
from phasejax.training.curriculum import Position, advance, is_finished, learning_rate, task_at
from phasejax.training.metrics import MetricsLog
from phasejax.training.sharding import ShardingRules, data_mesh
from phasejax.training.step import TrainState, make_optimizer, start_state, train_step
from phasejax.training.workdir import (
    CHECKPOINTS,
    STARTED,
    check_same_run,
    claim_workdir,
    locked,
)

Report = Callable[[dict[str, Any]], None]


class TrainingDiverged(FloatingPointError):
    """A metric stopped being finite; the message names it and the step."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What training left behind.

    Attributes:
        params: parameters of the model.
        graph: structure of the model.
        position: where training stands.
        finished: False if it was asked to stop early.
    """

    params: Params
    graph: nnx.GraphDef
    position: Position
    finished: bool


def make_run_optimizer(config: RunConfig) -> optax.GradientTransformation:
    """The optimizer of a run."""
    train = config.train
    return make_optimizer(
        abstract_params(config.model),
        b1=train.b1,
        b2=train.b2,
        weight_decay=train.weight_decay,
        clip_norm=train.clip_norm,
    )


def initial_state(config: RunConfig) -> TrainState:
    """Fresh parameters and optimizer state."""
    params = init_params(config.model, config.seed)
    return jax.jit(functools.partial(start_state, optimizer=make_run_optimizer(config)))(params)


def _checkpoint_tree(state: TrainState, position: Position) -> dict[str, Any]:
    numbers = {name: jnp.int32(value) for name, value in dataclasses.asdict(position).items()}
    return {
        "params": nnx.to_pure_dict(state.params),
        "opt_state": state.opt_state,
        "position": numbers,
    }


def _on_one_device(_: Any) -> Sharding:
    return SingleDeviceSharding(jax.devices()[0])


def restore(
    config: RunConfig,
    workdir: str | os.PathLike,
    store: CheckpointStore,
    place: Callable[[Any], Sharding] = _on_one_device,
) -> tuple[TrainState, Position]:
    """The newest readable checkpoint, or a fresh state if the run has none.

    Args:
        config: the run.
        workdir: its folder.
        store: its checkpoints, from whatever mesh.
        place: sharding of a leaf, given its shape and dtype.

    Raises:
        ValueError: if checkpoints were written and none can be read, or one is of another run.
    """
    for step, owner in store.owners().items():
        check_same_run(owner, config, f"Checkpoint {step} in {store.directory} is")
    begin = functools.partial(start_state, optimizer=make_run_optimizer(config))
    like = jax.eval_shape(begin, abstract_params(config.model))
    shapes = jax.eval_shape(lambda: _checkpoint_tree(like, Position()))
    found = store.restore(
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place(x)), shapes)
    )
    if found is None:
        if (Path(workdir) / STARTED).exists():
            raise ValueError(
                f"The run in {workdir} had checkpoints, and none is left in {store.directory}:"
                " restore them, or delete the workdir to train from scratch."
            )
        fresh = initial_state(config)
        return jax.device_put(fresh, jax.tree.map(place, fresh)), Position()
    _, tree = found
    nnx.replace_by_pure_dict(like.params, tree["params"])
    position = Position(**{name: int(value) for name, value in tree["position"].items()})
    return TrainState(like.params, tree["opt_state"]), position


def _check_finite(rows: list[dict[str, float]], last_step: int) -> None:
    for index, row in enumerate(rows):
        for name, value in row.items():
            if not math.isfinite(value):
                step = last_step - len(rows) + 1 + index
                raise TrainingDiverged(
                    f"{name} is {value} at step {step}: lower learning_rate or clip_norm. The last"
                    " good checkpoint is kept."
                )


def _take_steps(
    config: RunConfig,
    state: TrainState,
    position: Position,
    step_fn: Callable[..., tuple[TrainState, dict[str, Any]]],
    sharding: NamedSharding,
) -> tuple[TrainState, list[dict[str, Any]]]:
    """Takes check_every steps without waiting for any; returns the state and metrics of each."""
    task = task_at(config, position.stage)
    queries = jnp.asarray(task.query_positions)
    shape = (-1, config.train.microbatch(task.prompt_length))
    metrics = []
    for taken in range(config.train.check_every):
        here = position.after(taken)
        prompts = training_batch(task, config.train.batch_size, config.seed, here.step)
        batch = [x.reshape(*shape, x.shape[1]) for x in (prompts.tokens, prompts.answers)]
        batch = jax.device_put(batch, sharding)
        rate = jnp.float32(learning_rate(config, here))
        state, row = step_fn(state, *batch, queries, rate)
        metrics.append(row)
    return state, metrics


def train(
    config: RunConfig,
    workdir: str | os.PathLike,
    *,
    rules: ShardingRules | None = None,
    report: Report | None = None,
    stop: threading.Event | None = None,
) -> Trained:
    """Trains a run to its end, from its newest checkpoint if it has one.

    Args:
        config: the run.
        workdir: its folder: config.json, metrics.jsonl, checkpoints/.
        rules: logical axes to mesh axes; by default prompts are divided over the devices and
            parameters copied to each.
        report: called with every logged row.
        stop: when set, training checkpoints at the next look and returns unfinished.

    Raises:
        ValueError: if workdir is no folder, is in use by another process or holds another run, or
            if its checkpoints cannot be read.
        TrainingDiverged: at the first loss, accuracy or gradient norm that is not finite.
        OSError: if the disk is full, or workdir may not be written.
    """
    stages = range(len(config.train.stages) + 1)
    lengths = [task_at(config, stage).prompt_length for stage in stages]
    mesh = data_mesh(math.gcd(*map(config.train.microbatch, lengths)))
    with locked(workdir), jax.set_mesh(mesh):
        claim_workdir(workdir, config)
        return _train(config, Path(workdir), mesh, rules or ShardingRules(), report, stop)


def _train(
    config: RunConfig,
    workdir: Path,
    mesh: Mesh,
    rules: ShardingRules,
    report: Report | None,
    stop: threading.Event | None,
) -> Trained:
    store = CheckpointStore(workdir / CHECKPOINTS, keep=config.train.keep_checkpoints)
    state, position = restore(config, workdir, store, functools.partial(rules.parameter, mesh))
    graph = model_structure(config.model)
    step_fn = jax.jit(
        functools.partial(train_step, graph=graph, optimizer=make_run_optimizer(config)),
        donate_argnums=0,
        out_shardings=(jax.tree.map(lambda x: x.sharding, state), None),
        compiler_options=compiler_options(1),
    )
    batch_sharding = rules.sharding(mesh, "accumulation", "batch", "tokens")
    every = config.train.check_every
    with contextlib.closing(MetricsLog(workdir, resume_step=position.step)) as log:
        while not is_finished(config, position):
            began = time.perf_counter()
            state, pending = _take_steps(config, state, position, step_fn, batch_sharding)
            last = position.after(every - 1)
            position = position.after(every)
            rows = [{k: float(v) for k, v in row.items()} for row in jax.device_get(pending)]
            _check_finite(rows, position.step)
            means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
            row = {
                "step": position.step,
                "stage": position.stage,
                "stage_step": position.stage_step,
                **means,
                "learning_rate": learning_rate(config, last),
                "seconds": time.perf_counter() - began,
            }
            log.write(row)
            position = advance(config, position, means["accuracy"])
            if report is not None:
                report(row)
            stopping = stop is not None and stop.is_set()
            due = position.step % config.train.checkpoint_every == 0
            if due or stopping or is_finished(config, position):
                tree = _checkpoint_tree(state, position)
                store.save(position.step, tree, owner=config.flat())
                (workdir / STARTED).touch()
            if stopping:
                break
    return Trained(state.params, graph, position, is_finished(config, position))
