# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates a trained run: every document at every residue, one row a prompt."""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from phasejax.checkpoints.store import CheckpointStore
from phasejax.evals.gates import save_gates
from phasejax.evals.results import COLUMNS, write_result
from phasejax.models.build import Params, compiler_options, model_structure
from phasejax.tasks.crossed import CrossedDesign, crossed_design, moments
from phasejax.tasks.record_lookup import PADDINGS
from phasejax.training.config import RunConfig
from phasejax.training.curriculum import Position, is_finished
from phasejax.training.loop import CHECKPOINTS, restore
from phasejax.training.workdir import read_config

RESULTS = "results"
Scorer = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Report = Callable[[str, int, int], None]


def make_scorer(config: RunConfig, params: Params, batch: int) -> Scorer:
    """A function (tokens [b, T], answers [b]) -> (predictions [b], losses [b]) for any b <= batch.

    One shape is compiled; shorter batches are filled up and cut.
    """
    graph = model_structure(config.model)
    query = jnp.asarray(config.task.query_positions[-1:])

    @functools.partial(jax.jit, compiler_options=compiler_options(1))
    def forward(
        params: Params, tokens: jax.Array, answers: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        logits = nnx.merge(graph, params)(tokens, output_positions=query)[:, 0].astype(jnp.float32)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, answers)
        return jnp.argmax(logits, axis=-1), loss

    def score(tokens: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(batch) % len(tokens)
        prediction, loss = jax.device_get(forward(params, tokens[rows], answers[rows]))
        return prediction[: len(tokens)], loss[: len(tokens)]

    return score


def score_design(
    design: CrossedDesign, score: Scorer, batch: int, report: Report | None = None
) -> dict[str, np.ndarray]:
    """Rows of a result file, sorted by document and residue: one array for each of COLUMNS."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    task, total, done = design.task, design.shift.size, 0
    for document, residue, prompts in design.batches(batch):
        answer, position = prompts.answers[:, -1], prompts.key_positions[:, -1]
        prediction, loss = score(prompts.tokens, answer)
        row = {
            "document": document,
            "residue": residue,
            "shift": design.shift[document, residue],
            "target_position": position,
            "value_position": position + 1 + task.separation,
            "query_position": np.full(len(answer), task.query_positions[-1]),
            "key": prompts.tokens[:, -1],
            "value": answer,
            "prediction": prediction,
            "correct": (prediction == answer).astype(np.int64),
            "loss": loss,
        }
        for name, column in row.items():
            parts[name].append(column)
        done += len(answer)
        if report is not None:
            report(design.padding, done, total)
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def load_trained(workdir: str | os.PathLike) -> tuple[RunConfig, Params, Position]:
    """A run's configuration and its newest readable parameters.

    Raises:
        ValueError: if workdir holds no run or no finished training.
    """
    config = read_config(workdir)
    store = CheckpointStore(Path(workdir) / CHECKPOINTS, keep=config.train.keep_checkpoints)
    state, position = restore(config, workdir, store)
    if not is_finished(config, position):
        raise ValueError(
            f"The run in {workdir} stands at step {position.step}, before its end: train it with"
            " the same command first."
        )
    return config, state.params, position


def capture_gates(
    config: RunConfig, params: Params, tokens: np.ndarray
) -> dict[int, dict[str, np.ndarray]]:
    """Gate weights for prompts [B, T]: layer -> branch -> float32 [windows, W, K, C]."""
    model = nnx.merge(model_structure(config.model), params)
    captured = jax.jit(
        lambda model, tokens: model.gates(tokens), compiler_options=compiler_options(0)
    )(model, jnp.asarray(tokens))
    return {
        layer: {
            branch: np.asarray(gate, np.float32).reshape(-1, *gate.shape[2:])
            for branch, gate in branches.items()
        }
        for layer, branches in enumerate(captured)
    }


def evaluate(workdir: str | os.PathLike, *, report: Report | None = None) -> None:
    """Evaluates the run in workdir under both paddings and stores its gates.

    Writes results/prefix.* and results/in_sequence.* and, for learned or uniform gates, gates.zarr.

    Args:
        workdir: folder of a finished run.
        report: called with (padding, prompts done, prompts in all).
    """
    config, params, position = load_trained(workdir)
    settings = config.evaluation
    score = make_scorer(config, params, settings.eval_batch)
    drawn = crossed_design(config.task, settings.eval_documents, PADDINGS[0], settings.eval_seed)
    for padding in PADDINGS:  # the same documents and shifts; only the filler spreads otherwise
        design = dataclasses.replace(drawn, padding=padding)
        rows = score_design(design, score, settings.eval_batch, report)
        meta = {
            "config": config.flat(),
            "checkpoint_step": position.step,
            "val_loss": float(rows["loss"].mean()),
            "moments": dataclasses.asdict(moments(design.position)),
        }
        if padding == "prefix" and config.model.attention == "compressed":
            residues = config.task.residues
            _, _, prompts = next(design.batches(settings.gate_documents * residues))
            # One prompt of each document, at residues in turn.
            gates = capture_gates(config, params, prompts.tokens[:: residues + 1])
            save_gates(Path(workdir) / "gates.zarr", gates, config.model.geometry)
        write_result(Path(workdir) / RESULTS, padding, rows, meta)
