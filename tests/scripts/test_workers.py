# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that die: their run fails by name, and the others go on."""

import os
import signal

import pytest

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


def made(kind: type[Job]) -> Job:
    return object.__new__(kind)


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
