# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Trains the ablations from scratch, measures the periodic dips, writes the report.

    python -m scripts.reproduce --preset=quick      # ten runs, one seed: minutes on 2 cores
    python -m scripts.reproduce --preset=full       # every variant, three seeds: hours

The same command again continues: finished runs are skipped, interrupted ones resume. Opens with
report/index.html; its numbers are in report/summary.json.
"""

import concurrent.futures
import importlib
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

from absl import flags
from rich.progress import TextColumn

from configs.presets import PRESETS
from phasejax.files import write_atomic
from phasejax.training.config import RunConfig
from phasejax.validation import nearest
from scripts import running
from scripts.workers import Event, Job, is_done, run_all

_PRESET = flags.DEFINE_string("preset", "quick", f"Which runs: {', '.join(PRESETS)}.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the runs; runs/PRESET if not given.")
_REPORT = flags.DEFINE_string("report", "report", "Folder of the report.")
_WORKERS = flags.DEFINE_integer(
    "workers", None, "Processes; one a core if not given.", lower_bound=1
)
_RUNS = flags.DEFINE_list("runs", None, "Only these runs of the preset.")
_SEEDS = flags.DEFINE_list("seeds", None, "These seeds instead of the preset's.")
_OVERRIDES = flags.DEFINE_multi_string(
    "override", [], "FIELD=JSON, a change to every run, for trials; may be repeated."
)
_PERMUTATIONS = flags.DEFINE_integer(
    "permutations", 9999, "Permutations of every test.", lower_bound=99
)

CLOCK_FILE = "seconds.json"


def make_jobs(
    preset: str,
    workdir: Path,
    *,
    runs: list[str] | None,
    seeds: list[int] | None,
    overrides: dict[str, Any],
) -> list[Job]:
    """The runs of a preset.

    Raises:
        ValueError: for an unknown preset or run, naming the closest one.
    """
    if preset not in PRESETS:
        raise ValueError(f"Unknown preset {preset!r}: {nearest(preset, PRESETS)}")
    chosen = PRESETS[preset]
    for name in runs or ():
        if name not in chosen.names:
            raise ValueError(
                f"Unknown run {name!r} of preset {preset}: {nearest(name, chosen.names)}"
            )
    jobs = []
    for seed in chosen.seeds if seeds is None else seeds:
        for name in runs or chosen.names:
            flat = importlib.import_module(f"configs.laptop.{name}").get_config().to_dict()
            config = RunConfig.from_flat(flat | overrides | {"seed": seed})
            jobs.append(Job(config, str(workdir / f"{name}-seed{seed}")))
    return jobs


def total_seconds(workdir: Path, spent: float) -> float:
    """Adds the seconds of this call to those of earlier ones on the same runs."""
    path = workdir / CLOCK_FILE
    seconds = spent + (json.loads(path.read_text())["seconds"] if path.exists() else 0.0)
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({"seconds": seconds}))
    return seconds


def reproduce(
    preset: str,
    workdir: Path,
    report: Path,
    *,
    workers: int,
    runs: list[str] | None = None,
    seeds: list[int] | None = None,
    overrides: dict[str, Any] | None = None,
    permutations: int = 9999,
) -> bool:
    """Makes every missing run, then the report; returns whether all runs are in it."""
    began = time.monotonic()
    jobs = make_jobs(preset, workdir, runs=runs, seeds=seeds, overrides=overrides or {})
    todo = [job for job in jobs if not is_done(job)]
    if len(todo) < len(jobs):
        running.console.print(f"{len(jobs) - len(todo)} of {len(jobs)} runs are finished already.")
    complete = True
    try:
        if todo:
            with JobBars(todo) as bars:
                cache = str(workdir / "compiled")
                complete = run_all(todo, workers=workers, cache=cache, on_event=bars.show)
    finally:
        total_seconds(workdir, time.monotonic() - began)
    done = [job.workdir for job in jobs if is_done(job)]
    if not done:
        running.console.print(
            "No run is finished, so there is nothing to report.", style="bold red"
        )
        return False
    path = write(done, report, permutations=permutations, workdir=workdir)
    running.console.print(f"Report: {path}", soft_wrap=True)
    return complete


def write(workdirs: list[str], report: Path, *, permutations: int, workdir: Path) -> Path:
    """Summarizes finished runs and writes the report; the seconds that it takes count too."""
    from phasejax.analysis.report import write_report
    from phasejax.analysis.runs import read_run
    from phasejax.analysis.summary import summarize

    began = time.monotonic()
    loaded = [read_run(path) for path in workdirs]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with (
        running.console.status("Testing for periods, drawing the report"),
        concurrent.futures.ProcessPoolExecutor(
            mp_context=multiprocessing.get_context("spawn")
        ) as pool,
    ):
        summary = summarize(loaded, permutations=permutations, map_runs=pool.map)
        summary["wall_seconds"] = round(total_seconds(workdir, time.monotonic() - began), 1)
        return write_report(loaded, summary, report)


class JobBars:
    """One bar a run in progress, one for all."""

    def __init__(self, jobs: list[Job]):
        self._jobs = jobs
        self._bars = running.bars(TextColumn("{task.fields[note]}"))
        self._all = self._bars.add_task("all runs", total=len(jobs), note="")
        self._tasks: dict[int, Any] = {}
        self._done: dict[int, float] = {}

    def __enter__(self) -> "JobBars":
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        """Draws an event."""
        config = self._jobs[event.job].config
        label = f"{config.name} seed {config.seed}"
        if event.job not in self._tasks:
            self._tasks[event.job] = self._bars.add_task(
                label, total=config.train.max_steps, note=""
            )
        task = self._tasks[event.job]
        if event.kind == "step":
            left = running.steps_left(config, event.detail)
            note = f"stage {event.detail['stage'] + 1}  accuracy {event.detail['accuracy']:.2f}"
            step = event.detail["step"]
            self._bars.update(task, completed=step, total=step + left, note=note)
            self._done[event.job] = step / (step + left)
        elif event.kind == "score":
            padding, done, total = event.detail
            self._bars.update(task, note=f"evaluating {padding} {done / total:.0%}")
        else:
            self._bars.remove_task(task)
            if event.kind == "done":
                self._done[event.job] = 1.0
            if event.kind == "failed":
                message, details = event.detail
                running.console.print(f"{label} failed: {message}", style="bold red", markup=False)
                Path(self._jobs[event.job].workdir, "error.txt").write_text(details)
        self._bars.update(self._all, completed=sum(self._done.values()))


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """Fields and values of --override.

    Raises:
        ValueError: naming the item that is not FIELD=JSON.
    """
    overrides = {}
    for item in items:
        name, _, value = item.partition("=")
        try:
            overrides[name] = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"--override={item} is not FIELD=JSON ({error}).") from error
    return overrides


def parse_seeds(items: list[str] | None) -> list[int] | None:
    """Numbers of --seeds.

    Raises:
        ValueError: naming the flag, if one is not a number.
    """
    try:
        return [int(item) for item in items] if items else None
    except ValueError as error:
        raise ValueError(f"--seeds={','.join(items or ())} are not whole numbers.") from error


def main(_: list[str]) -> int:
    """Maps flags to arguments."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    preset = _PRESET.value
    overrides = running.guarded(parse_overrides, _OVERRIDES.value)
    try:
        complete = running.guarded(
            reproduce,
            preset,
            Path(_WORKDIR.value or f"runs/{preset}"),
            Path(_REPORT.value),
            workers=_WORKERS.value or len(os.sched_getaffinity(0)),
            runs=_RUNS.value,
            seeds=running.guarded(parse_seeds, _SEEDS.value),
            overrides=overrides,
            permutations=_PERMUTATIONS.value,
        )
    except KeyboardInterrupt:
        running.console.print("Stopped; the same command continues.")
        return running.UNFINISHED
    return 0 if complete else 1


if __name__ == "__main__":
    running.run(main)
