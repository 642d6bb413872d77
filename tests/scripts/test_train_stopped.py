# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts.train when it is interrupted, or the disk does not do what it should."""

import errno
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phasejax.training.metrics import METRICS_FILE, read_metrics

ROOT = Path(__file__).parents[2]
TINY = {
    "curriculum": "()",
    "final_steps": 3000,
    "check_every": 10,
    "checkpoint_every": 1000,
    "num_layers": 1,
    "width": 16,
    "mlp_width": 16,
    "num_heads": 1,
    "num_records": 2,
    "demonstrations": 0,
    "context": 90,
    "batch_size": 4,
}
# What happens is planted at the first look; the rest is the command as a person calls it.
PLANT = """
import os, resource, runpy, signal, sys
from phasejax.training import metrics
written = metrics.MetricsLog.write
def write(self, row):
    written(self, row)
    {action}
metrics.MetricsLog.write = write
sys.argv = ["scripts.train", *sys.argv[1:]]
runpy.run_module("scripts.train", run_name="__main__")
"""


@pytest.fixture
def train(script_env, tmp_path):
    """Runs the command to its end, with an action at the first look."""

    def run(action: str, workdir: Path | str = tmp_path / "run", *more: str, **changes):
        script = tmp_path / "planted.py"
        script.write_text(PLANT.format(action=action))
        fields = [f"--config.{name}={value}" for name, value in (TINY | changes).items()]
        arguments = ["--config=configs/laptop/w8s8.py", f"--workdir={workdir}", *fields, *more]
        return subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=ROOT,
            env=script_env | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def assert_one_line_error(done: subprocess.CompletedProcess, *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    for part in parts:
        assert part in line


@pytest.mark.parametrize("sent", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_a_signal_saves_and_says_how_to_go_on(train, tmp_path, sent):
    done = train(f"os.kill(os.getpid(), signal.{sent})", tmp_path / "run", "--quiet")
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    said = done.stderr.strip().splitlines()
    assert said[0] == f"{sent}: saving a checkpoint soon; again to end at once."
    assert said[-1].startswith("Stopped with a checkpoint at step 10; to continue: ")
    assert f"--workdir={tmp_path / 'run'}" in shlex.split(said[-1])
    assert (tmp_path / "run" / "checkpoints" / "10").is_dir()
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [10]


@pytest.mark.slow
def test_a_second_signal_ends_at_once(train, tmp_path):
    action = "[os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]"
    done = train(action, tmp_path / "run")
    assert done.returncode == -signal.SIGINT
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 1000], ids=["metrics", "checkpoint"])
def test_a_disk_that_takes_no_more_is_one_line(train, limit):
    # The largest size of a file is lowered; a full disk fails in the same places.
    action = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    parts = ["Checkpoint 20 could not be written", "make room"] if limit > 1 else [METRICS_FILE]
    assert_one_line_error(train(action, checkpoint_every=20), os.strerror(errno.EFBIG), *parts)


@pytest.mark.parametrize(
    ("workdir", "parts"),
    [
        ("", ["--workdir has an empty value"]),
        pytest.param("{tmp}/file/run", ["file/run", "is not a folder"], marks=pytest.mark.slow),
        pytest.param("/proc/run", ["/proc/run"], marks=pytest.mark.slow),
    ],
)
def test_a_workdir_that_cannot_be_is_one_line(train, tmp_path, workdir, parts):
    (tmp_path / "file").touch()
    assert_one_line_error(train("pass", workdir.format(tmp=tmp_path)), *parts)
