# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a tiny run: one row a prompt, and every row is what its prompt says."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from phasejax.evals.evaluate import (
    capture_gates,
    evaluate,
    load_trained,
    make_scorer,
    score_design,
)
from phasejax.evals.gates import load_gates
from phasejax.evals.results import COLUMNS, correct_matrix, read_result
from phasejax.models.build import init_params, model_structure
from phasejax.tasks.crossed import crossed_design
from phasejax.tasks.record_lookup import PADDINGS, TaskConfig
from phasejax.training.config import RunConfig
from phasejax.training.loop import train
from phasejax.training.workdir import claim_workdir

DOCUMENTS, RESIDUES = 30, 4
FLAT = {
    "name": "tiny",
    "recipe": "tiny",
    "seed": 0,
    "num_layers": 1,
    "width": 16,
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 8,
    "mlp_width": 16,
    "attention": "compressed",
    "window": 4,
    "local_window": 4,
    "tie_embeddings": False,
    "init_std": None,
    "embed_std": 1.0,
    "num_records": 3,
    "context": 18,
    "num_keys": 4,
    "num_values": 3,
    "num_fillers": 2,
    "demonstrations": 1,
    "residues": RESIDUES,
    "final_steps": 4,
    "check_every": 2,
    "checkpoint_every": 4,
    "batch_size": 4,
    "microbatch_tokens": 23,
    "warmup_steps": 1,
    "eval_documents": DOCUMENTS,
    "eval_batch": 32,
    "gate_documents": 3,
}


def config_of(**changes) -> RunConfig:
    return RunConfig.from_flat(FLAT | changes)


pytestmark = pytest.mark.usefixtures("kept_programs")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, kept_programs):
    """A folder of a run that was trained for four steps and evaluated, and what was reported."""
    workdir = tmp_path_factory.mktemp("run")
    train(config_of(), workdir)
    reported = []
    evaluate(workdir, report=lambda *counts: reported.append(counts))
    return workdir, reported


@pytest.fixture
def finished(evaluated, tmp_path):
    return Path(shutil.copytree(evaluated[0], tmp_path / "run"))


@pytest.mark.parametrize("padding", PADDINGS)
def test_every_prompt_has_a_row(evaluated, padding):
    result = read_result(evaluated[0] / "results", padding)
    rows = result.rows
    assert len(rows["document"]) == DOCUMENTS * RESIDUES
    assert rows["document"].tolist() == np.repeat(np.arange(DOCUMENTS), RESIDUES).tolist()
    assert rows["residue"].tolist() == np.tile(np.arange(RESIDUES), DOCUMENTS).tolist()
    assert np.array_equal(rows["target_position"] % RESIDUES, rows["residue"])
    assert np.array_equal(rows["value_position"], rows["target_position"] + 1)
    assert set(rows["query_position"].tolist()) == {20}
    # Targets stand at records in turn, each 2 tokens, plus the filler moved before them.
    assert np.array_equal(rows["shift"], rows["target_position"] - 2 * (rows["document"] % 3))
    assert set(rows["shift"].tolist()) == set(range(3 * RESIDUES))
    correct, position = correct_matrix(rows)
    assert correct.shape == position.shape == (DOCUMENTS, RESIDUES)


@pytest.mark.parametrize("padding", PADDINGS)
def test_rows_are_what_the_model_says_of_the_prompts(evaluated, padding):
    workdir, _ = evaluated
    rows = read_result(workdir / "results", padding).rows
    config, params, _ = load_trained(workdir)
    design = crossed_design(config.task, DOCUMENTS, padding, config.evaluation.eval_seed)
    _, _, prompts = next(design.batches(DOCUMENTS * RESIDUES))
    forward = jax.jit(lambda p, t: nnx.merge(model_structure(config.model), p)(t))
    logits = np.asarray(forward(params, prompts.tokens), np.float64)[:, -1]
    top = logits.max(-1, keepdims=True)
    log_probability = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    at = np.arange(len(logits))
    answer = prompts.tokens[at, rows["value_position"]]
    assert np.array_equal(rows["value"], answer)
    assert np.array_equal(rows["key"], prompts.tokens[:, -1])
    assert np.array_equal(rows["key"], prompts.tokens[at, rows["target_position"]])
    assert np.array_equal(rows["correct"], logits.argmax(-1) == answer)
    assert np.array_equal(rows["prediction"], logits.argmax(-1))
    np.testing.assert_allclose(rows["loss"], -log_probability[at, answer], rtol=1e-4, atol=1e-5)
    assert 0 < rows["correct"].mean() < 1


@pytest.mark.parametrize("padding", PADDINGS)
def test_rows_of_separated_records_point_at_their_values(padding):
    task = TaskConfig(
        num_records=4, context=40, num_keys=9, separation=2, residues=8, demonstrations=2
    )
    design = crossed_design(task, 32, padding, 0)
    seen = []

    def knows_every_other(tokens, answers):
        seen.append(tokens)
        return answers + np.arange(len(answers)) % 2, np.arange(len(answers)) / 8

    rows = score_design(design, knows_every_other, 256)
    tokens, at = np.concatenate(seen), np.arange(256)
    assert np.array_equal(tokens[at, rows["target_position"]], rows["key"])
    assert np.array_equal(tokens[at, rows["value_position"]], rows["value"])
    assert np.array_equal(rows["value_position"] - rows["target_position"], np.full(256, 3))
    assert np.array_equal(rows["correct"], (at + 1) % 2)
    assert np.array_equal(rows["loss"], at / 8)


def test_meta_says_what_was_evaluated(evaluated):
    workdir, _ = evaluated
    for padding in PADDINGS:
        result = read_result(workdir / "results", padding)
        assert RunConfig.from_flat(result.meta["config"]) == config_of()
        assert result.meta["checkpoint_step"] == 4
        assert result.meta["val_loss"] == pytest.approx(result.rows["loss"].mean(), rel=1e-6)
        assert result.meta["moments"]["mean"] == pytest.approx(
            result.rows["target_position"].mean()
        )


def test_progress_counts_prompts(evaluated):
    total = DOCUMENTS * RESIDUES
    _, reported = evaluated
    assert [r for r in reported if r[0] == "prefix"] == [
        ("prefix", done, total) for done in (32, 64, 96, total)
    ]
    assert reported[-1] == ("in_sequence", total, total)


def test_gates_of_several_documents_are_stored(evaluated):
    gates = load_gates(evaluated[0] / "gates.zarr")
    config, params, _ = load_trained(evaluated[0])
    assert gates.geometry == config.model.geometry
    entries = config.model.geometry.num_entries(config.task.prompt_length)
    for branch in ("key", "value"):
        assert gates.layers[0][branch].shape == (3 * entries, 4, 2, 1)
    design = crossed_design(config.task, DOCUMENTS, "prefix", config.evaluation.eval_seed)
    _, _, prompts = next(design.batches(3 * RESIDUES))
    wanted = capture_gates(config, params, prompts.tokens[[0, RESIDUES + 1, 2 * RESIDUES + 2]])
    np.testing.assert_array_equal(gates.layers[0]["key"], wanted[0]["key"])


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_size_of_a_batch_does_not_matter(padding):
    config = config_of()
    params = init_params(config.model, 1)
    design = crossed_design(config.task, DOCUMENTS, padding, 0)
    total = DOCUMENTS * RESIDUES
    rows = [score_design(design, make_scorer(config, params, n), n) for n in (total, 28)]
    for name in COLUMNS:
        if name == "loss":
            np.testing.assert_allclose(rows[1][name], rows[0][name], rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(rows[1][name], rows[0][name])


def test_a_repeated_evaluation_gives_the_same_rows(evaluated, finished):
    evaluate(finished)
    for padding in PADDINGS:
        name = f"{padding}.csv"
        assert (finished / "results" / name).read_bytes() == (
            evaluated[0] / "results" / name
        ).read_bytes()


def test_a_run_that_is_not_finished_is_refused(tmp_path):
    claim_workdir(tmp_path, config_of())
    with pytest.raises(ValueError, match=r"stands at step 0, before its end: train it"):
        evaluate(tmp_path)
    assert not (tmp_path / "results").exists()


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        evaluate(tmp_path)


def test_a_run_that_lost_its_checkpoints_is_refused(finished):
    shutil.rmtree(finished / "checkpoints")
    with pytest.raises(ValueError, match="had checkpoints, and none is left"):
        evaluate(finished)


@pytest.mark.slow
def test_full_attention_stores_no_gates(tmp_path):
    flat = {k: v for k, v in FLAT.items() if k not in ("window", "local_window")}
    config = RunConfig.from_flat(flat | {"attention": "full", "name": "full", "final_steps": 2}
                                 | {"checkpoint_every": 2})  # fmt: skip
    train(config, tmp_path)
    evaluate(tmp_path)
    assert not (tmp_path / "gates.zarr").exists()
    assert read_result(tmp_path / "results", "in_sequence").meta["rows"] == DOCUMENTS * RESIDUES
