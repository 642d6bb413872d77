# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that die: their run fails by name, and the others go on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scripts import running
from scripts.workers import Job, run_all


class Killed(Job):
    """A job whose process is killed when it begins."""

    @property
    def config(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Left(Job):
    """A job whose process ends by itself."""

    @property
    def config(self):
        os._exit(7)


class Broken(Job):
    """A job that raises an error."""

    @property
    def config(self):
        raise ValueError("no such run")


class Asking(Job):
    """A job that says which signals its process does not hear."""

    @property
    def config(self):
        raise ValueError(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


class Endless(Job):
    """A job that hears of no stop once it has begun."""

    @property
    def config(self):
        Path(self.workdir).touch()
        threading.Event().wait()


def made(kind: type[Job], workdir: Path | None = None) -> Job:
    job = object.__new__(kind)
    vars(job)["workdir"] = str(workdir)
    return job


@pytest.mark.parametrize("workers", [1, 3])
def test_a_process_that_dies_fails_its_run_alone(tmp_path, workers):
    jobs = [made(kind) for kind in (Killed, Broken, Left)]
    events = {}
    complete = run_all(
        jobs,
        workers=workers,
        cache=str(tmp_path),
        on_event=lambda event: events.setdefault(event.job, []).append(event),
    )
    assert not complete
    assert {job: [event.kind for event in heard] for job, heard in events.items()} == {
        job: ["failed"] for job in range(3)
    }
    said = [events[job][0].detail[0] for job in range(3)]
    assert "killed by signal 9 (Killed), as happens when memory runs out: try" in said[0]
    assert said[1] == "ValueError: no such run"
    assert "ended with exit code 7" in said[2]


FIRST_WORKER = """
import signal
from scripts.workers import run_all
from tests.scripts.test_workers import Asking, made
run_all([made(Asking)], workers=1, cache={cache!r}, on_event=lambda event: print(event.detail[0]))
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_a_worker_does_not_hear_ctrl_c_from_its_first_moment(tmp_path, script_env):
    done = subprocess.run(  # in a process that has started no other yet
        [sys.executable, "-c", FIRST_WORKER.format(cache=str(tmp_path))],
        cwd=Path(__file__).parents[2],
        env=script_env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    worker, itself = done.stdout.splitlines()
    assert "SIGINT" in worker, done.stderr
    assert itself == "set()"


def test_a_second_ctrl_c_ends_every_worker_at_once(tmp_path, monkeypatch):
    said, begun = [], [tmp_path / "a", tmp_path / "b"]

    def ctrl_c() -> None:
        while not all(path.exists() for path in begun):
            time.sleep(0.1)
        # To the thread that waits, as the kernel does: another would not wake it.
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def again(text: str) -> None:
        said.append(text)
        threading.Timer(1, ctrl_c).start()

    monkeypatch.setattr(running.console, "print", again)
    threading.Thread(target=ctrl_c).start()
    jobs = [made(Endless, path) for path in begun]
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, workers=2, cache=str(tmp_path), on_event=said.append)
    assert said == ["Saving checkpoints soon; again to end at once."]
    for process in multiprocessing.active_children():
        process.join(20)
        assert process.exitcode == -signal.SIGKILL
