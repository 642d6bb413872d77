# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run from its start to its end, however often it is stopped."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from phasejax.training.config import RunConfig
from phasejax.training.curriculum import Position
from phasejax.training.loop import CHECKPOINTS, STARTED, TrainingDiverged, train
from phasejax.training.metrics import read_metrics
from phasejax.training.sharding import ShardingRules
from phasejax.training.workdir import CONFIG_FILE

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


def test_a_folder_takes_one_run_at_a_time(config, tmp_path):
    said = []

    def report(row):
        with pytest.raises(
            ValueError, match=r"is in use by process \d+: wait for its end"
        ) as error:
            train(config, tmp_path)
        said.append(str(error.value))
        raise Killed

    with pytest.raises(Killed):
        train(config, tmp_path, report=report)
    assert f"workdir='{tmp_path}'" in said[0]
    assert f"process {os.getpid()}" in said[0]


def test_a_config_put_beside_the_checkpoints_of_another_is_refused(config, tiny, copy_of_stopped):
    other = tiny(advance_accuracy=1.1, learning_rate=0.01)  # the arrays have the same shapes
    (copy_of_stopped / CONFIG_FILE).write_text(json.dumps(other.flat()))
    before = read_metrics(copy_of_stopped)
    with pytest.raises(
        ValueError, match=r"Checkpoint 20 in .* is of another config \(learning_rate: 0\.02 there"
    ):
        train(other, copy_of_stopped)
    assert read_metrics(copy_of_stopped) == before


def test_checkpoints_without_a_config_are_not_adopted(config, copy_of_stopped):
    (copy_of_stopped / CONFIG_FILE).unlink()
    with pytest.raises(ValueError, match=r"holds checkpoints, .*config\.json, .*is missing"):
        train(config, copy_of_stopped)
    assert not (copy_of_stopped / CONFIG_FILE).exists()


def test_a_run_stopped_before_a_damaged_checkpoint_keeps_its_own(config, tmp_path, straight):
    run = Path(shutil.copytree(straight[1], tmp_path / "run"))
    damage(run, 32)
    assert train(config, run, **stop_at(28)).position.step == 28
    assert steps_of(run) == [24, 28]
    reported = []
    assert_same_run(train(config, run, report=reported.append), run, straight)
    assert [row["step"] for row in reported] == [32]


KILLED_WHILE_SAVING = """
import json, os, signal, sys
from phasejax.training.config import RunConfig
from phasejax.training.loop import train
workdir, config = sys.argv[1:]
rename = os.rename
def die(source, target, **how):
    if ".orbax-checkpoint-tmp" in str(source) and str(target).endswith("/16"):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target, **how)
os.rename = die  # Orbax commits by renaming a folder that is written in full
train(RunConfig.from_flat(json.loads(config)), workdir)
"""


def test_a_run_killed_while_it_saves_goes_on_from_the_last_whole_one(config, tmp_path, straight):
    # The programs that this process compiled are found again, so that the child is quick.
    compiled = {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
    found = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_SAVING, tmp_path, json.dumps(config.flat())],
        cwd=Path(__file__).parents[2],
        env=os.environ | compiled,
        timeout=300,
    )
    assert found.returncode == -signal.SIGKILL
    assert steps_of(tmp_path) == [8]
    left = [path.name for path in (tmp_path / CHECKPOINTS).glob("*tmp*")]
    assert left, "killed too late or too soon"
    assert read_metrics(tmp_path)[-1]["step"] == 16
    reported = []
    resumed = train(config, tmp_path, report=reported.append)
    assert [row["step"] for row in reported] == list(range(12, 33, 4))
    assert_same_run(resumed, tmp_path, straight)
    assert not list((tmp_path / CHECKPOINTS).glob("*tmp*"))


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
    """Copied to every device or divided over them, parameters take the same way."""
    many = tiny(advance_accuracy=1.1, microbatch_tokens=8 * 23)
    rules = {"copied": ShardingRules(), "divided": ShardingRules(parameters="data")}
    for name, how in rules.items():
        found = train(many, tmp_path / name, rules=how)
        leaves = jax.tree.leaves(found.params)
        assert all(len(x.sharding.device_set) == 8 for x in leaves)
        assert all(x.is_fully_replicated for x in leaves) == (name == "copied")
        rows = map(rows_without_seconds, (tmp_path / name, straight[1]))
        for row, wanted in zip(*rows, strict=True):
            assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-3)
            assert row["step"] == wanted["step"]


@pytest.mark.slow
def test_divided_parameters_are_resumed_bit_for_bit(tiny, tmp_path):
    config = tiny(advance_accuracy=1.1, microbatch_tokens=8 * 23)
    rules = ShardingRules(parameters="data")
    straight = train(config, tmp_path / "straight", rules=rules), tmp_path / "straight"
    train(config, tmp_path / "run", rules=rules, **stop_at(20))
    assert_same_run(train(config, tmp_path / "run", rules=rules), tmp_path / "run", straight)
    # Another placement reads the same checkpoint.
    assert train(config, tmp_path / "run").finished
