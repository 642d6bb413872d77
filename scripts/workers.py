# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs side by side: one process a core, each training and evaluating one run after the other."""

import collections
import contextlib
import dataclasses
import functools
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from phasejax.training.config import RunConfig
from scripts import running

ENDS = ("done", "stopped", "failed")  # kinds of events after which a worker is free


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


def _work(core: int | None, cache: str, jobs: Sequence[Job], pipe: Connection) -> None:
    """A worker process: pinned to a core before JAX counts them.

    It hears indices of jobs, and None when it should checkpoint and end.
    """
    if core is not None:
        os.sched_setaffinity(0, {core})
    stop, todo = threading.Event(), queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, stop, todo), daemon=True).start()
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    while (index := todo.get()) is not None:
        say = functools.partial(_say, pipe, index)
        try:
            finished = run_job(jobs[index], say, stop)
            say("done" if finished else "stopped")
        except Exception as error:  # one failed run must not end the others
            say("failed", (f"{type(error).__name__}: {error}", traceback.format_exc()))


def _listen(pipe: Connection, stop: threading.Event, todo: queue.SimpleQueue) -> None:
    """Hears the parent; one that was killed says stop, too."""
    with contextlib.suppress(EOFError, OSError):
        while (index := pipe.recv()) is not None:
            todo.put(index)
    stop.set()
    todo.put(None)


def _say(pipe: Connection, index: int, kind: str, detail: Any = None) -> None:
    with contextlib.suppress(OSError):  # the parent was killed: the run is to be checkpointed
        pipe.send(Event(index, kind, detail))


class _Worker:
    """The parent's view of a worker: its process, its pipe, the job that it is at."""

    def __init__(self, core: int | None, cache: str, jobs: Sequence[Job]):
        context = multiprocessing.get_context("spawn")
        self.core = core
        self.job: int | None = None
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(core, cache, list(jobs), theirs))
        # Ctrl-C reaches every process of a terminal, and this one says stop: what it starts is deaf
        # to it from the first, not from where _work begins. The tracker unblocks it as it starts.
        resource_tracker.ensure_running()
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        theirs.close()  # so that the pipe ends when the process does

    def give(self, job: int | None) -> None:
        """Hands it a job, or None to end it."""
        self.job = job
        with contextlib.suppress(OSError):  # it has died, which the next wait notices
            self.pipe.send(job)

    def hear(self) -> Event | None:
        """The next event; None if the process has ended."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return None

    def epitaph(self) -> Event:
        """What to say of the job that the process died at."""
        status = self.process.exitcode or 0
        how = f"ended with exit code {status}"
        if status < 0:
            how = f"was killed by signal {-status} ({signal.strsignal(-status)})"
        if status == -signal.SIGKILL:
            how += ", as happens when memory runs out: try --workers=1"
        return Event(self.job or 0, "failed", (f"its process {how}.", f"The process {how}.\n"))


def run_all(
    jobs: Sequence[Job], *, workers: int, cache: str, on_event: Callable[[Event], None]
) -> bool:
    """Runs the jobs in order on several pinned processes.

    A process that dies fails its job alone; another takes its place. On KeyboardInterrupt every
    worker checkpoints its run and ends; a second one ends them at once.

    Args:
        jobs: what to run; slow ones first.
        workers: processes.
        cache: folder of compiled programs, kept between calls.
        on_event: called in this process with every event.

    Returns:
        Whether every job is done.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]
    todo, done, crew = collections.deque(range(len(jobs))), set(), []
    try:
        for i in range(min(workers, len(jobs))):
            crew.append(_Worker(cores[i % len(cores)], cache, jobs))
            crew[-1].give(todo.popleft())
        while busy := {worker.pipe: worker for worker in crew if worker.job is not None}:
            for pipe in multiprocessing.connection.wait(list(busy)):
                worker = busy[pipe]
                event = worker.hear()
                if event is None:
                    on_event(worker.epitaph())
                    crew.remove(worker)
                    if todo:
                        crew.append(_Worker(worker.core, cache, jobs))
                        crew[-1].give(todo.popleft())
                    continue
                if event.kind == "done":
                    done.add(event.job)
                on_event(event)
                if event.kind in ENDS:
                    worker.give(todo.popleft() if todo else None)
    except KeyboardInterrupt:
        running.console.print("Saving checkpoints soon; again to end at once.")
        raise
    finally:
        _dismiss(crew)
    return len(done) == len(jobs)


def _dismiss(crew: Sequence[_Worker]) -> None:
    """Has every worker checkpoint its run and end."""
    try:
        for worker in crew:
            worker.give(None)
        for worker in crew:
            while worker.hear() is not None:
                pass
    except KeyboardInterrupt:
        for worker in crew:
            worker.process.kill()  # a checkpoint is whole or absent
        raise
