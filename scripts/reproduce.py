# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Trains the ablations from scratch, measures the periodic dips, writes the report.

    python -m scripts.reproduce --preset=quick      # ten runs, one seed: minutes on 2 cores
    python -m scripts.reproduce --preset=full       # every variant, three seeds: hours

The same command again continues: finished runs are skipped, interrupted ones resume. Opens with
report/index.html; its numbers are in report/summary.json.
"""

import collections
import contextlib
import importlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from absl import flags
from rich.progress import TextColumn

from configs.presets import PRESETS
from phasejax.files import write_atomic
from phasejax.training.config import OWN_FIELDS, RunConfig
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
        ValueError: for an unknown preset or run, naming the closest one; for a run or seed that is
            named twice; for a change that does not fit.
    """
    if preset not in PRESETS:
        raise ValueError(f"Unknown preset {preset!r}: {nearest(preset, PRESETS)}")
    chosen = PRESETS[preset]
    seeds = list(chosen.seeds) if seeds is None else seeds
    for flag, named in (("runs", runs or []), ("seeds", seeds)):
        twice = [item for item, count in collections.Counter(named).items() if count > 1]
        if twice:
            raise ValueError(f"--{flag} names {twice[0]} more than once: name it once.")
    for name in runs or ():
        if name not in chosen.names:
            raise ValueError(
                f"Unknown run {name!r} of preset {preset}: {nearest(name, chosen.names)}"
            )
    jobs = []
    for seed in seeds:
        for name in runs or chosen.names:
            flat = importlib.import_module(f"configs.laptop.{name}").get_config().to_dict()
            try:
                config = RunConfig.from_flat(flat | overrides | {"seed": seed})
            except ValueError as error:
                raise ValueError(f"Run {name}: {error}") from error
            jobs.append(Job(config, str(workdir / f"{name}-seed{seed}")))
    return jobs


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
    running.check_folder("--report", report)
    running.check_folder("--workdir", workdir)
    for job in jobs:
        running.check_folder("The folder of a run,", Path(job.workdir))
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
        running.total_seconds(workdir, time.monotonic() - began)
    done = [job.workdir for job in jobs if is_done(job)]
    if not done:
        running.console.print(
            "No run is finished, so there is nothing to report.", style="bold red"
        )
        return False
    began = time.monotonic()
    path = running.write_report(
        done,
        report,
        permutations=permutations,
        seconds=lambda: running.total_seconds(workdir, time.monotonic() - began),
    )
    running.console.print(f"Report: {path}", soft_wrap=True)
    return complete


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
            self._bars.update(task, note=f"evaluating {padding} {done / total:4.0%}")
        else:
            self._bars.remove_task(task)
            if event.kind == "done":
                self._done[event.job] = 1.0
            if event.kind == "failed":
                message, details = event.detail
                running.console.print(f"{label} failed: {message}", style="bold red", markup=False)
                path = Path(self._jobs[event.job].workdir, "error.txt")
                with contextlib.suppress(OSError):  # a full disk must not end the other runs
                    path.parent.mkdir(parents=True, exist_ok=True)  # it may have been moved away
                    write_atomic(path, details)
        self._bars.update(self._all, completed=sum(self._done.values()))


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """Fields and values of --override.

    Raises:
        ValueError: naming the item that is not FIELD=JSON, or whose field is not for all runs.
    """
    overrides = {}
    for item in items:
        name, _, value = item.partition("=")
        if name in OWN_FIELDS:
            raise ValueError(
                f"--override={item}: every run has its own {name}, so choose runs with --runs and"
                " seeds with --seeds."
            )
        if name in overrides:
            raise ValueError(f"--override={item} changes {name} a second time: change it once.")
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
        return None if items is None else [int(item) for item in items]
    except ValueError as error:
        raise ValueError(
            f"--seeds={','.join(items or ())} are not whole numbers: write them as --seeds=0,1,2."
        ) from error


def main(_: list[str]) -> int:
    """Maps flags to arguments."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    preset = _PRESET.value
    try:
        complete = reproduce(
            preset,
            Path(_WORKDIR.value or f"runs/{preset}"),
            Path(_REPORT.value),
            workers=_WORKERS.value or len(os.sched_getaffinity(0)),
            runs=_RUNS.value,
            seeds=parse_seeds(_SEEDS.value),
            overrides=parse_overrides(_OVERRIDES.value),
            permutations=_PERMUTATIONS.value,
        )
    except KeyboardInterrupt:
        running.console.print("Stopped; the same command continues.")
        return running.UNFINISHED
    return 0 if complete else 1


if __name__ == "__main__":
    running.run(main, first="preset")
