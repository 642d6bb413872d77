# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs side by side: one process a core, each training and evaluating one run after the other."""

import dataclasses
import functools
import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phasejax.training.config import RunConfig


@dataclasses.dataclass(frozen=True)
class Job:
    """One run and its folder."""

    config: RunConfig
    workdir: str


@dataclasses.dataclass(frozen=True)
class Event:
    """What a worker says about its job: kind is "step", "score", "done", "stopped" or "failed"."""

    job: int
    kind: str
    detail: Any = None


def is_done(job: Job) -> bool:
    """Whether the job's results exist, can be read and are of this very configuration."""
    from phasejax.evals.evaluate import RESULTS
    from phasejax.evals.results import read_result
    from phasejax.tasks.record_lookup import PADDINGS
    from phasejax.training.workdir import claim_workdir

    results = Path(job.workdir) / RESULTS
    if not all((results / f"{padding}.json").exists() for padding in PADDINGS):
        return False
    claim_workdir(job.workdir, job.config)
    for padding in PADDINGS:
        read_result(results, padding)
    return True


def run_job(job: Job, say: Callable[[str, Any], None], stop: Any) -> bool:
    """Trains and evaluates; returns False if it was stopped before its end."""
    from phasejax.evals.evaluate import evaluate
    from phasejax.training.loop import train

    if not train(job.config, job.workdir, report=lambda row: say("step", row), stop=stop).finished:
        return False
    evaluate(job.workdir, report=lambda *counts: say("score", counts))
    return True


def _stop_with_parent(stop: Any) -> None:
    """A worker whose parent was killed checkpoints its run and ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        stop.set()


def _say(events: Any, index: int, kind: str, detail: Any) -> None:
    events.put(Event(index, kind, detail))


def _work(
    core: int | None, cache: str, jobs: Sequence[Job], todo: Any, events: Any, stop: Any
) -> None:
    """A worker process: pinned to a core before JAX counts them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and says stop
    threading.Thread(target=_stop_with_parent, args=(stop,), daemon=True).start()
    if core is not None:
        os.sched_setaffinity(0, {core})
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    while not stop.is_set():
        try:
            index = todo.get_nowait()
        except queue.Empty:
            return
        try:
            finished = run_job(jobs[index], functools.partial(_say, events, index), stop)
            events.put(Event(index, "done" if finished else "stopped"))
        except Exception as error:  # one failed run must not end the others
            detail = (f"{type(error).__name__}: {error}", traceback.format_exc())
            events.put(Event(index, "failed", detail))


def run_all(
    jobs: Sequence[Job], *, workers: int, cache: str, on_event: Callable[[Event], None]
) -> bool:
    """Runs the jobs in order on several pinned processes.

    On KeyboardInterrupt every worker checkpoints its run and ends.

    Args:
        jobs: what to run; slow ones first.
        workers: processes.
        cache: folder of compiled programs, kept between calls.
        on_event: called in this process with every event.

    Returns:
        Whether every job is done.

    Raises:
        RuntimeError: if a worker process died, naming its exit status.
    """
    context = multiprocessing.get_context("spawn")
    todo, events, stop = context.Queue(), context.Queue(), context.Event()
    for index in range(len(jobs)):
        todo.put(index)
    # A queue that was just filled can look empty to another process for a moment.
    time.sleep(0.1)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]
    processes = [
        context.Process(
            target=_work,
            args=(cores[i % len(cores)], cache, list(jobs), todo, events, stop),
            daemon=False,
        )
        for i in range(min(workers, len(jobs)))
    ]
    done = set()
    for process in processes:
        process.start()
    try:
        while any(process.is_alive() for process in processes) or not events.empty():
            try:
                event = events.get(timeout=0.5)
            except queue.Empty:
                continue
            if event.kind == "done":
                done.add(event.job)
            on_event(event)
    finally:
        stop.set()
        todo.cancel_join_thread()
        _drain(processes, events)
    died = [process.exitcode for process in processes if process.exitcode]
    if died:
        raise RuntimeError(
            f"worker processes ended with status {died}: run the same command again to go on."
        )
    return len(done) == len(jobs)


def _drain(processes: Sequence[Any], events: Any) -> None:
    """Waits for the workers; an unread queue would keep them from ending."""
    while any(process.is_alive() for process in processes):
        try:
            events.get(timeout=0.2)
        except queue.Empty:
            continue
    for process in processes:
        process.join()
