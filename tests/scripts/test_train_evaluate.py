# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts.train and scripts.evaluate as a person calls them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phasejax.evals.results import read_result
from phasejax.training.metrics import read_metrics
from phasejax.training.workdir import read_config

ROOT = Path(__file__).parents[2]
TINY = {
    "curriculum": "((1,4,90,2),)",
    "final_steps": 4,
    "check_every": 2,
    "checkpoint_every": 2,
    "advance_accuracy": 2.0,
    "num_layers": 1,
    "width": 16,
    "mlp_width": 16,
    "num_heads": 1,
    "num_records": 2,
    "demonstrations": 0,
    "context": 90,
    "batch_size": 4,
    "warmup_steps": 1,
    "eval_documents": 24,
}


def command(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"scripts.{script}", *arguments]


def train_command(workdir: Path, **changes) -> list[str]:
    values = {"window": 6} | TINY | changes
    fields = [f"--config.{name}={value}" for name, value in values.items()]
    return command("train", "--config=configs/laptop/w8s8.py", f"--workdir={workdir}", *fields)


def slow(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.slow)


@pytest.fixture
def call(script_env):
    """Runs a command to its end."""

    def run(arguments: list[str], timeout: float = 300) -> subprocess.CompletedProcess:
        return subprocess.run(
            arguments, cwd=ROOT, env=script_env, capture_output=True, text=True, timeout=timeout
        )

    return run


def assert_one_line_error(done: subprocess.CompletedProcess, *parts: str) -> None:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    for part in parts:
        assert part in line


def test_train_evaluate_and_again(call, tmp_path):
    workdir = tmp_path / "run"
    done = call(train_command(workdir))
    assert done.returncode == 0, done.stderr
    assert "100%" in done.stderr
    assert "I1" not in done.stderr, "log lines of a dependency"
    config = read_config(workdir)
    assert (config.name, config.model.window, config.model.geometry.stride) == ("w8s8", 6, 6)
    assert [row["step"] for row in read_metrics(workdir)] == [2, 4, 6]

    metrics = (workdir / "metrics.jsonl").read_bytes()
    again = call([*train_command(workdir), "--quiet"])
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert (workdir / "metrics.jsonl").read_bytes() == metrics

    assert_one_line_error(
        call(train_command(workdir, window=8)), "another config", "window: 6 there, 8 asked"
    )

    done = call(command("evaluate", f"--workdir={workdir}"))
    assert done.returncode == 0, done.stderr
    for padding in ("prefix", "in_sequence"):
        assert read_result(workdir / "results", padding).meta["rows"] == 24 * 24
        assert padding.replace("_", "-") in done.stdout
    # One row a phase of the stride, with its interval.
    assert sum("[" in line for line in done.stdout.splitlines()) == 6
    assert (workdir / "gates.zarr").is_dir()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"windw": 6}, ["Unknown config field 'windw'", "did you mean 'window'"]),
        ({"window": 4, "stride": 8}, ["window=4", "stride=8", "set window >= stride"]),
        slow({"gate": "vectr"}, ["gate='vectr'", "did you mean 'vector'"]),
        slow({"num_records": 30}, ["context=90", "30 records", "need 131 tokens"]),
        slow({"window": "many"}, ["window", "many"]),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_a_mistake_is_one_line_and_touches_nothing(call, tmp_path, changes, parts):
    began = time.monotonic()
    done = call(train_command(tmp_path / "run", **changes))
    assert_one_line_error(done, *parts)
    assert not (tmp_path / "run").exists()
    assert "starting" not in done.stderr
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_a_missing_file_is_named(call, tmp_path):
    done = call(command("train", "--config=configs/laptop/w9.py", f"--workdir={tmp_path}/run"))
    assert done.returncode == 2
    assert "configs/laptop/w9.py" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_evaluating_no_run_is_one_line(call, tmp_path):
    done = call(command("evaluate", f"--workdir={tmp_path}"))
    assert_one_line_error(done, "holds no run", "config.json is missing")


@pytest.mark.slow
def test_a_terminated_run_is_continued(script_env, call, tmp_path):
    workdir = tmp_path / "run"
    changes = {"final_steps": 3000, "check_every": 20, "checkpoint_every": 1000}
    changes["curriculum"] = "()"
    process = subprocess.Popen(
        train_command(workdir, **changes),
        cwd=ROOT,
        env=script_env,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 200
    while not read_metrics(workdir) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 3, errors
    stopped = read_metrics(workdir)[-1]["step"]
    assert 0 < stopped < 3000
    unfinished = call(command("evaluate", f"--workdir={workdir}"))
    assert_one_line_error(unfinished, f"stands at step {stopped}, before its end")
    assert call(train_command(workdir, **changes)).returncode == 0
    steps = [json.loads(x)["step"] for x in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(20, 3001, 20))
