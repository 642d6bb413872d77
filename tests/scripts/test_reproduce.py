# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts.reproduce: side by side, skipped when finished, continued when stopped."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.presets import PRESETS
from phasejax.training.metrics import read_metrics
from scripts.reproduce import JobBars, make_jobs, parse_overrides, parse_seeds
from scripts.workers import Event

ROOT = Path(__file__).parents[2]
RUNS = ("full", "w8s8")
TINY = {
    "curriculum": [],
    "final_steps": 4,
    "check_every": 2,
    "checkpoint_every": 4,
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


def command(folder: Path, **changes) -> list[str]:
    overrides = [f"--override={k}={json.dumps(v)}" for k, v in (TINY | changes).items()]
    return [
        sys.executable,
        "-m",
        "scripts.reproduce",
        "--preset=quick",
        f"--runs={','.join(RUNS)}",
        "--workers=2",
        "--permutations=99",
        f"--workdir={folder}/runs",
        f"--report={folder}/report",
        *overrides,
    ]


@pytest.fixture
def call(script_env):
    """Runs a command to its end."""

    def run(arguments: list[str]) -> subprocess.CompletedProcess:
        return subprocess.run(
            arguments, cwd=ROOT, env=script_env, capture_output=True, text=True, timeout=500
        )

    return run


def check_report(folder: Path) -> dict:
    summary = json.loads((folder / "report" / "summary.json").read_text())
    assert [run["name"] for run in summary["runs"]] == list(RUNS)
    control, compressed = summary["runs"]
    needed = {"name", "window", "stride", "seed", "val_loss", "mean", "worst", "gap", "gap_low"}
    needed |= {"gap_high", "gap_folded", "period", "p_value", "p_known_stride"}
    assert needed <= set(control)
    assert control["p_known_stride"] is None
    assert (compressed["window"], compressed["stride"], compressed["seed"]) == (8, 8, 0)
    assert 0 <= compressed["worst"] <= compressed["mean"] <= 1
    assert compressed["gap_low"] <= compressed["gap_high"]
    assert summary["wall_seconds"] > 0
    assert "jax" in summary["versions"]
    page = (folder / "report" / "index.html").read_text()
    assert "w8s8" in page
    return summary


def test_two_runs_a_report_and_nothing_left_to_do(call, tmp_path):
    done = call(command(tmp_path))
    assert done.returncode == 0, done.stderr
    first = check_report(tmp_path)
    for name in RUNS:
        assert read_metrics(tmp_path / "runs" / f"{name}-seed0")[-1]["step"] == 4
    logs = {p: p.read_bytes() for p in (tmp_path / "runs").glob("*-seed0/*") if p.is_file()}

    again = call(command(tmp_path))
    assert again.returncode == 0, again.stderr
    assert "2 of 2 runs are finished already." in again.stderr
    assert {p: p.read_bytes() for p in logs} == logs
    second = check_report(tmp_path)
    assert second["runs"] == first["runs"]
    assert second["wall_seconds"] > first["wall_seconds"], "the seconds of both calls count"

    # A report of stored runs is the same, and its own seconds do not count.
    report = [sys.executable, "-m", "scripts.report", f"--stored={tmp_path}/runs"]
    report += [f"--report={tmp_path}/report", "--permutations=99"]
    clock = tmp_path / "runs" / "seconds.json"
    for _ in range(2):
        stored = call(report)
        assert stored.returncode == 0, stored.stderr
        third = check_report(tmp_path)
        assert third == second | {"created": third["created"]}
    clock.write_text("{")
    assert call(report).returncode == 0
    assert json.loads((tmp_path / "report" / "summary.json").read_text())["wall_seconds"] is None
    clock.unlink()
    logs.pop(clock, None)

    # The same folder with other fields is not mixed up, and not trained over.
    other = call(command(tmp_path, width=8))
    assert other.returncode == 2
    assert "width: 16 there, 8 asked" in other.stderr
    assert "Traceback" not in other.stderr
    assert {p: p.read_bytes() for p in logs} == logs


def test_a_wrong_preset_is_one_line(call, tmp_path):
    arguments = [a for a in command(tmp_path) if not a.startswith("--preset")]
    done = call([*arguments, "--preset=quik"])
    assert done.returncode == 2
    assert "Unknown preset 'quik': did you mean 'quick'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def jobs(**changes):
    arguments = {"runs": None, "seeds": None, "overrides": {}} | changes
    return make_jobs(arguments.pop("preset", "quick"), Path("runs"), **arguments)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_all_its_runs_with_all_its_seeds(preset):
    made = jobs(preset=preset)
    chosen = PRESETS[preset]
    assert len({job.workdir for job in made}) == len(chosen.names) * len(chosen.seeds) == len(made)
    assert {(job.config.name, job.config.seed) for job in made} == {
        (name, seed) for name in chosen.names for seed in chosen.seeds
    }
    # Runs of one recipe differ in the model, or in the separation that a series is about.
    for recipe in {job.config.recipe for job in made}:
        same = [job.config for job in made if job.config.recipe == recipe]
        tasks = {dataclasses.replace(c.task, separation=0) for c in same}
        assert len({(task, c.train, c.evaluation) for task in tasks for c in same}) == 1


def test_some_runs_with_other_seeds_and_fields():
    made = jobs(runs=["w8s8"], seeds=[5, 6], overrides={"num_layers": 1})
    assert [job.config.seed for job in made] == [5, 6]
    assert {job.config.model.num_layers for job in made} == {1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "ful"}, "Unknown preset 'ful': did you mean 'full'"),
        ({"runs": ["w8s9"]}, "Unknown run 'w8s9' of preset quick: did you mean"),
        ({"overrides": {"windo": 4}}, "Unknown config field 'windo': did you mean 'window'"),
    ],
)
def test_unknown_names_are_refused_with_the_closest(changes, message):
    with pytest.raises(ValueError, match=message):
        jobs(**changes)


@pytest.mark.parametrize("there", [True, False])
def test_the_traceback_of_a_failed_run_is_kept(tmp_path, there):
    (job,) = jobs(runs=["full"])
    job = dataclasses.replace(job, workdir=str(tmp_path / "run"))
    if there:
        (tmp_path / "run").mkdir()
    with JobBars([job]) as bars:
        bars.show(Event(0, "failed", ("OSError: no", "Traceback\u2026\n")))
    kept = tmp_path / "run" / "error.txt"
    assert kept.read_text(encoding="utf-8") == "Traceback\u2026\n"


def test_flags_are_read_or_refused():
    assert parse_overrides(["curriculum=[]", 'gate="vector"']) == {
        "curriculum": [],
        "gate": "vector",
    }
    assert parse_seeds(["1", "2"]) == [1, 2]
    assert parse_seeds(None) is None
    for item in ("gate=vector", "gate"):
        with pytest.raises(ValueError, match=rf"--override={item} is not FIELD=JSON"):
            parse_overrides([item])
    with pytest.raises(ValueError, match=r"--seeds=1,x are not whole numbers"):
        parse_seeds(["1", "x"])


@pytest.mark.slow
def test_a_killed_run_is_named_and_the_others_are_reported(script_env, call, tmp_path):
    changes = {"final_steps": 6000, "check_every": 20, "checkpoint_every": 2000}
    arguments = [f"--runs={RUNS[1]},{RUNS[0]}" if a.startswith("--runs") else a
                 for a in command(tmp_path, **changes)]  # fmt: skip
    process = subprocess.Popen(
        [*arguments, "--workers=1"], cwd=ROOT, env=script_env, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 300
    while not read_metrics(tmp_path / "runs" / "w8s8-seed0") and time.monotonic() < until:
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (worker,) = [c for c in children if "spawn_main" in Path(f"/proc/{c}/cmdline").read_text()]
    os.kill(int(worker), signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1, errors
    assert "w8s8 seed 0 failed: its process was killed by signal 9" in " ".join(errors.split())
    assert "Traceback" not in errors
    assert "signal 9" in (tmp_path / "runs" / "w8s8-seed0" / "error.txt").read_text()
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert [run["name"] for run in summary["runs"]] == ["full"]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_reproduction_is_continued(script_env, call, tmp_path, sent):
    changes = {"final_steps": 3000, "check_every": 20, "checkpoint_every": 1000}
    process = subprocess.Popen(
        command(tmp_path, **changes), cwd=ROOT, env=script_env, stderr=subprocess.PIPE, text=True
    )
    workdirs = [tmp_path / "runs" / f"{name}-seed0" for name in RUNS]
    until = time.monotonic() + 300
    # At the first row of either: by that of the slower one the other may be at its end.
    while not any(map(read_metrics, workdirs)) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 3, errors
    assert "the same command continues" in errors
    assert "Traceback" not in errors
    stopped = [read_metrics(workdir)[-1]["step"] for workdir in workdirs]
    assert all(0 < step < 3000 for step in stopped)
    for workdir, step in zip(workdirs, stopped, strict=True):
        assert (workdir / "checkpoints" / str(step)).is_dir()
    done = call(command(tmp_path, **changes))
    assert done.returncode == 0, done.stderr
    check_report(tmp_path)
    for workdir in workdirs:
        assert [row["step"] for row in read_metrics(workdir)] == list(range(20, 3001, 20))
