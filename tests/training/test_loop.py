# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run from its start to its end, however often it is stopped."""

import logging
import shutil
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from phasejax.training.config import RunConfig
from phasejax.training.curriculum import Position
from phasejax.training.loop import CHECKPOINTS, STARTED, TrainingDiverged, train
from phasejax.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("kept_programs")


class Killed(Exception):
    pass


def stop_at(step: int):
    """Report and stop event of a run that is asked to stop after a step."""
    stop = threading.Event()
    return {"stop": stop, "report": lambda row: stop.set() if row["step"] == step else None}


def die_at(step: int):
    """Report of a run that is killed at a step, before it can save anything."""

    def report(row):
        if row["step"] == step:
            raise Killed

    return {"report": report}


def rows_without_seconds(workdir: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(workdir)]


def assert_same_run(found, workdir: Path, straight) -> None:
    wanted, wanted_workdir = straight
    assert found.finished
    assert found.position == wanted.position
    for a, b in zip(
        *(map(np.asarray, jax.tree.leaves(t.params)) for t in (found, wanted)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert rows_without_seconds(workdir) == rows_without_seconds(wanted_workdir)


@pytest.fixture(scope="module")
def config(tiny) -> RunConfig:
    # The bar of the stage is never passed, so that it takes its 8 steps.
    return tiny(advance_accuracy=1.1)


@pytest.fixture(scope="module")
def straight(config, tmp_path_factory, kept_programs):
    """The run without a stop."""
    workdir = tmp_path_factory.mktemp("straight")
    return train(config, workdir), workdir


@pytest.fixture(scope="module")
def stopped(config, tmp_path_factory, kept_programs):
    """The run, asked to stop after step 20 of 32: checkpoints 16 and 20 are there."""
    workdir = tmp_path_factory.mktemp("stopped")
    found = train(config, workdir, **stop_at(20))
    assert not found.finished
    assert found.position == Position(20, 1, 12)
    return workdir


@pytest.fixture
def copy_of_stopped(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def steps_of(workdir: Path) -> list[int]:
    return sorted(int(p.name) for p in (workdir / CHECKPOINTS).glob("*") if p.name.isdigit())


def damage(workdir: Path, step: int) -> None:
    for path in (workdir / CHECKPOINTS / str(step)).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_run_reaches_its_end_and_learns(config, straight):
    found, workdir = straight
    assert found.finished
    assert found.position == Position(32, 1, 24)
    rows = read_metrics(workdir)
    assert [row["step"] for row in rows] == list(range(4, 33, 4))
    assert [row["stage"] for row in rows] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert [row["stage_step"] for row in rows] == [4, 8, 4, 8, 12, 16, 20, 24]
    assert all(row["seconds"] > 0 for row in rows)
    assert rows[1]["learning_rate"] == pytest.approx(config.train.learning_rate)
    assert rows[-1]["learning_rate"] < rows[-2]["learning_rate"] < rows[1]["learning_rate"]
    assert rows[-1]["loss"] < 0.6 * rows[0]["loss"]
    assert rows[-1]["accuracy"] > rows[0]["accuracy"]
    assert steps_of(workdir) == [24, 32]


def test_a_finished_run_is_left_as_it_is(config, straight):
    _, workdir = straight
    before = {p: p.stat().st_mtime_ns for p in (workdir / CHECKPOINTS).rglob("*")}
    reported = []
    assert_same_run(train(config, workdir, report=reported.append), workdir, straight)
    assert reported == []
    after = {p: p.stat().st_mtime_ns for p in (workdir / CHECKPOINTS).rglob("*")}
    assert {p: t for p, t in after.items() if p.is_file()} == {
        p: t for p, t in before.items() if p.is_file()
    }


def test_a_stopped_run_goes_on_bit_for_bit(config, copy_of_stopped, straight):
    reported = []
    found = train(config, copy_of_stopped, report=reported.append)
    assert_same_run(found, copy_of_stopped, straight)
    assert [row["step"] for row in reported] == [24, 28, 32]


def test_a_killed_run_repeats_what_it_had_not_saved(config, tmp_path, straight):
    # At 8 a stage ends; 12 was logged and not saved.
    with pytest.raises(Killed):
        train(config, tmp_path, **die_at(12))
    assert [row["step"] for row in read_metrics(tmp_path)] == [4, 8, 12]
    assert steps_of(tmp_path) == [8]
    assert_same_run(train(config, tmp_path), tmp_path, straight)


def test_a_run_killed_before_its_first_checkpoint_starts_again(config, tmp_path, straight):
    with pytest.raises(Killed):
        train(config, tmp_path, **die_at(4))
    assert_same_run(train(config, tmp_path), tmp_path, straight)


def test_a_damaged_newest_checkpoint_costs_its_steps_only(
    config, copy_of_stopped, straight, caplog
):
    damage(copy_of_stopped, 20)
    reported = []
    with caplog.at_level(logging.WARNING):
        found = train(config, copy_of_stopped, report=reported.append)
    assert "Checkpoint 20" in caplog.text
    assert reported[0]["step"] == 20  # from 16 on
    assert_same_run(found, copy_of_stopped, straight)


def test_a_run_without_a_readable_checkpoint_is_not_started_again(config, copy_of_stopped):
    for step in (16, 20):
        damage(copy_of_stopped, step)
    with pytest.raises(ValueError, match=r"No checkpoint in .* can be read"):
        train(config, copy_of_stopped)
    assert read_metrics(copy_of_stopped)[-1]["step"] == 20


@pytest.mark.parametrize("lost", ["folder", "content"])
def test_a_run_whose_checkpoints_are_gone_is_not_started_again(config, copy_of_stopped, lost):
    shutil.rmtree(copy_of_stopped / CHECKPOINTS)
    if lost == "content":
        (copy_of_stopped / CHECKPOINTS).mkdir()
    with pytest.raises(
        ValueError, match=r"had checkpoints, and none is left in .*delete the workdir"
    ):
        train(config, copy_of_stopped)
    assert (copy_of_stopped / STARTED).exists()
    assert read_metrics(copy_of_stopped)[-1]["step"] == 20


def test_another_config_does_not_touch_the_run(config, tiny, copy_of_stopped):
    files = lambda: {p: p.read_bytes() for p in copy_of_stopped.rglob("*") if p.is_file()}  # noqa: E731
    before = files()
    with pytest.raises(
        ValueError, match=r"another config.*learning_rate: 0\.02 there, 0\.01 asked"
    ):
        train(tiny(advance_accuracy=1.1, learning_rate=0.01), copy_of_stopped)
    assert files() == before


def test_the_first_number_that_is_not_finite_ends_the_run(tiny, tmp_path):
    # After one update the parameters are infinite; the loss of the next step is not a number.
    config = tiny(learning_rate=1e38, warmup_steps=1)
    with pytest.raises(TrainingDiverged, match=r"(loss|grad_norm) is (nan|inf) at step 2: lower"):
        train(config, tmp_path)
    assert read_metrics(tmp_path) == []
    assert steps_of(tmp_path) == []


def test_a_stage_whose_bar_is_passed_ends_early(tiny, tmp_path):
    found = train(tiny(advance_accuracy=0.0, final_steps=8), tmp_path)
    assert found.position == Position(12, 1, 8)
    assert [(row["stage"], row["stage_step"]) for row in read_metrics(tmp_path)] == [
        (0, 4), (1, 4), (1, 8)
    ]  # fmt: skip


@pytest.mark.slow
def test_eight_devices_give_the_run_of_one(config, tiny, straight, tmp_path):
    many = tiny(advance_accuracy=1.1, microbatch_tokens=8 * 23)
    train(many, tmp_path)
    for row, wanted in zip(*map(rows_without_seconds, (tmp_path, straight[1])), strict=True):
        assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-3)
        assert row["step"] == wanted["step"]
