# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripts share: the clock of a job, errors of the system, the peer of the benchmark."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.laptop.w8s8 import get_config
from phasejax.training.config import RunConfig
from scripts import running, torch_peer
from scripts.running import guarded, read_seconds, total_seconds, write_json


def test_seconds_of_every_call_are_added(tmp_path):
    assert read_seconds(tmp_path / "new") is None
    assert total_seconds(tmp_path / "new", 2.0) == 2.0
    assert total_seconds(tmp_path / "new", 3.5) == 5.5
    assert read_seconds(tmp_path / "new") == 5.5


@pytest.mark.parametrize(
    "text",
    ["", "{", "3", "[]", "{}", '{"seconds": "x"}', '{"seconds": null}', '{"seconds": NaN}', "\xff"]
    + ['{"seconds": -1}', '{"seconds": Infinity}'],
)
def test_a_damaged_clock_stops_nothing(tmp_path, text):
    (tmp_path / "seconds.json").write_bytes(text.encode("latin-1"))
    assert read_seconds(tmp_path) is None
    assert total_seconds(tmp_path, 2.0) == read_seconds(tmp_path) == 2.0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device", "runs/x"), "No space left on device: 'runs/x'"),
        (PermissionError(13, "Permission denied", "runs/x"), "Permission denied: 'runs/x'"),
        (ValueError("window=0"), "error: window=0"),
        (OSError(28, "No space left on device"), "device: mend that; the same command continues."),
        (OSError("Checkpoint 3 failed: make room."), "error: Checkpoint 3 failed: make room.\n"),
        (FloatingPointError("loss is nan"), "error: loss is nan"),
    ],
)
def test_errors_of_the_system_end_in_one_line(error, message, monkeypatch):
    def fails():
        raise error

    with running.console.capture() as said, pytest.raises(SystemExit, match="2"):
        guarded(fails)
    assert message in said.get()
    monkeypatch.setattr(running.logging, "level_debug", lambda: True)
    with pytest.raises(type(error)):
        guarded(fails)


def test_ctrl_c_ends_in_one_line(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    with running.console.capture() as said, pytest.raises(SystemExit, match="130"):
        guarded(interrupted)
    assert said.get().count("\n") == 1
    assert "the same command starts again" in said.get()
    monkeypatch.setattr(running.logging, "level_debug", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        guarded(interrupted)


POOL = """
import concurrent.futures, multiprocessing, os, time
from scripts import running
if __name__ == "__main__":
    pool = concurrent.futures.ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=running.serve
    )
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def test_a_pool_ends_with_its_parent_however_that_ends(script_env, tmp_path):
    (tmp_path / "pool.py").write_text(POOL)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "pool.py")],
        env=script_env | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = int(parent.stdout.readline())
    os.kill(worker, signal.SIGINT)  # which it does not hear
    assert os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOHANG) is None
    parent.kill()
    parent.wait()
    until = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def test_errors_of_the_program_are_shown_whole():
    with pytest.raises(KeyError):
        guarded({}.__getitem__, "x")


def test_numbers_are_written_or_not_asked_for(tmp_path):
    running.check_json(str(tmp_path / "new" / "x.json"))
    write_json(str(tmp_path / "new" / "x.json"), {"a": 1})
    assert (tmp_path / "new" / "x.json").read_text() == '{\n  "a": 1\n}\n'
    running.check_json(None)
    write_json(None, {})


UNWRITTEN = {
    "attention": "full",
    "stride": 4,
    "gate": "vector",
    "gate_bias": False,
    "tie_kv": True,
    "post_norm": True,
    "exact_tokens": "tail",
    "rope_fraction": 0.0,
    "qk_norm": False,
    "sink": True,
    "tie_embeddings": True,
    "param_dtype": "bfloat16",
    "compute_dtype": "bfloat16",
}
# What only sizes it, or how it begins; an anchor differs only where windows overlap.
SIZES = {"vocab_size", "num_layers", "width", "num_heads", "num_kv_heads", "head_dim", "mlp_width"}
SIZES |= {"window", "local_window", "rotary_anchor", "rope_theta", "norm_eps"}
SIZES |= {"init_std", "embed_std"}


def test_the_peer_times_what_it_computes_and_nothing_else(monkeypatch):
    run = RunConfig.from_flat(get_config().to_dict())
    monkeypatch.setattr(torch_peer.importlib.util, "find_spec", lambda _: True)
    torch_peer.check(run)
    assert {field.name for field in dataclasses.fields(run.model)} == SIZES | set(UNWRITTEN)
    for name, value in UNWRITTEN.items():
        model = dataclasses.replace(run.model, **{"window": 8, name: value} if name != "attention"
                                    else {name: value})  # fmt: skip
        other = dataclasses.replace(run, model=model)
        with pytest.raises(ValueError, match=rf"{name}={value!r}, but --compare=torch times only"):
            torch_peer.check(other)


def test_a_missing_peer_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(torch_peer.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="needs PyTorch: pip install torch"):
        torch_peer.check(RunConfig.from_flat(get_config().to_dict()))
