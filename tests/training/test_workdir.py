# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run's folder: whose it is, and what it logged."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phasejax.training.metrics import METRICS_FILE, MetricsLog, read_metrics
from phasejax.training.workdir import (
    CONFIG_FILE,
    LOCK_FILE,
    MADE_BY_A_RUN,
    RESULTS,
    claim_workdir,
    locked,
    read_config,
)


def test_a_folder_belongs_to_the_first_run(tiny, tmp_path):
    folder = tmp_path / "deep" / "run"
    claim_workdir(folder, tiny())
    claim_workdir(folder, tiny())
    assert read_config(folder) == tiny()
    assert [path.name for path in folder.iterdir()] == [CONFIG_FILE]


def test_another_config_is_refused_naming_the_fields(tiny, tmp_path):
    claim_workdir(tmp_path, tiny())
    before = (tmp_path / CONFIG_FILE).read_bytes()
    with pytest.raises(ValueError, match="holds a run of another config") as error:
        claim_workdir(tmp_path, tiny(window=2, seed=5))
    assert "window: 4 there, 2 asked" in str(error.value)
    assert "seed: 0 there, 5 asked" in str(error.value)
    assert "local_window" not in str(error.value)
    assert (tmp_path / CONFIG_FILE).read_bytes() == before


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: .*config\.json is missing"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", MADE_BY_A_RUN)
def test_what_a_run_made_is_not_adopted_without_its_config(tiny, tmp_path, name):
    (tmp_path / "notes.txt").touch()
    claim_workdir(tmp_path, tiny())  # what no run makes is no obstacle
    (tmp_path / CONFIG_FILE).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(
        ValueError, match=rf"holds {name}, but config\.json, .*restore it, or choose"
    ):
        claim_workdir(tmp_path, tiny())
    assert not (tmp_path / CONFIG_FILE).exists()


def test_results_of_another_config_are_refused(tiny, tmp_path):
    claim_workdir(tmp_path, tiny())
    (tmp_path / RESULTS).mkdir()
    path = tmp_path / RESULTS / "prefix.json"
    for harmless in ("", "[]", json.dumps({"config": tiny().flat()}), "\udcff"):
        path.write_text(harmless, errors="surrogateescape")
        claim_workdir(tmp_path, tiny())
    path.write_text(json.dumps({"config": tiny(window=2).flat()}))
    with pytest.raises(ValueError, match=r"prefix\.json is of another config \(window: 2 there, 4"):
        claim_workdir(tmp_path, tiny())


@pytest.mark.parametrize("action", [read_config, lambda w: locked(w).__enter__(), "claim"])
def test_an_empty_name_is_refused(tiny, tmp_path, monkeypatch, action):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="workdir='' is empty: name a folder"):
        claim_workdir("", tiny()) if action == "claim" else action("")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_file_is_no_folder(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not a folder, or lies below a file"):
        locked(tmp_path / "file" / below).__enter__()


def test_one_at_a_time_may_hold_a_folder(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        with pytest.raises(ValueError, match=rf"run' is in use by process {os.getpid()}: wait"):
            locked(folder).__enter__()
        with locked(tmp_path / "other"):
            pass
    with locked(folder):
        pass


HOLD = """
import sys, time
from phasejax.training.workdir import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path, script_env):
    folder = tmp_path / "run"
    root = Path(__file__).parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], cwd=root, env=script_env, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=f"in use by process {holder.pid}: wait"):
            locked(folder).__enter__()
    finally:
        holder.kill()
        holder.communicate()
    with locked(folder):
        assert (folder / LOCK_FILE).read_text() == f"{os.getpid()}\n"


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        assert "a file system without locks" in caplog.text


def test_a_damaged_config_is_named(tiny, tmp_path):
    claim_workdir(tmp_path, tiny())
    path = tmp_path / CONFIG_FILE
    path.write_text(path.read_text()[:50])
    for action in (lambda: read_config(tmp_path), lambda: claim_workdir(tmp_path, tiny())):
        with pytest.raises(ValueError, match=r"config\.json is not readable JSON"):
            action()


@pytest.mark.parametrize("content", ["[1, 2]", "3", '{"name": "a"}', "null"])
def test_json_that_is_no_config_is_refused(tmp_path, content):
    (tmp_path / CONFIG_FILE).write_text(content)
    with pytest.raises(ValueError, match="config"):
        read_config(tmp_path)


def test_rows_past_the_checkpoint_are_dropped(tmp_path):
    log = MetricsLog(tmp_path, resume_step=0)
    for step in (4, 8, 12):
        log.write({"step": step, "loss": 0.5})
    log.close()
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"step": 16, "lo')  # killed while writing
    assert [row["step"] for row in read_metrics(tmp_path)] == [4, 8, 12]
    log = MetricsLog(tmp_path, resume_step=8)
    log.write({"step": 12, "loss": float("nan")})
    log.close()
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 4, "loss": 0.5},
        {"step": 8, "loss": 0.5},
        {"step": 12, "loss": None},
    ]


GOOD = b'{"step": 4}\n{"step": 8}\n'


@pytest.mark.parametrize(
    "tail",
    [
        b'{"step": 12, "lo', b"\xff\x00\xfe\n\x80garbage\n", b"\0" * 4096, b"[1]\n3\n", b"\n\n",
        b'{"loss": 1.0}\n', b'{"step": "12"}\n', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_end_is_dropped_and_said(tmp_path, tail, caplog):
    path = tmp_path / METRICS_FILE
    path.write_bytes(GOOD + tail)
    assert [row["step"] for row in read_metrics(tmp_path)] == [4, 8]
    assert f"{path}: the end, from line 3 on, is damaged" in caplog.text
    caplog.clear()
    MetricsLog(tmp_path, resume_step=8).close()
    assert path.read_bytes() == GOOD
    assert "lost" not in caplog.text
    path.write_bytes(GOOD + tail)
    MetricsLog(tmp_path, resume_step=12).close()
    assert f"{path}: rows of steps 9 to 12 are lost" in caplog.text


def test_garbage_before_a_row_is_an_error_and_nothing_is_dropped(tmp_path):
    path = tmp_path / METRICS_FILE
    path.write_bytes(b"\xff\x00\n" + GOOD)
    with pytest.raises(ValueError, match=rf"{METRICS_FILE}:1 is not a row .*delete the line"):
        MetricsLog(tmp_path, resume_step=8)
    assert path.read_bytes() == b"\xff\x00\n" + GOOD


def test_an_empty_log_is_no_damage(tmp_path, caplog):
    (tmp_path / METRICS_FILE).touch()
    assert read_metrics(tmp_path) == []
    assert caplog.text == ""


def test_a_full_disk_names_the_file(tmp_path):
    log = MetricsLog(tmp_path, resume_step=0)
    log.close()
    full = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
    log._file = full
    with full, pytest.raises(OSError, match=rf"No space left on device: .*{METRICS_FILE}"):
        log.write({"step": 4})


def test_no_metrics_yet(tmp_path):
    assert read_metrics(tmp_path) == []


def test_a_broken_line_among_metrics_is_said_and_nothing_is_dropped(tmp_path):
    text = '{"step": 4}\n{"st\n{"step": 12}\n'
    (tmp_path / METRICS_FILE).write_text(text)
    with pytest.raises(ValueError, match=rf"{METRICS_FILE}:2 is not a row of metrics"):
        MetricsLog(tmp_path, resume_step=12)
    assert (tmp_path / METRICS_FILE).read_text() == text
