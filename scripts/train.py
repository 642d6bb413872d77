# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Trains one run; the same command again continues it.

    python -m scripts.train --config=configs/laptop/w8s8.py --workdir=runs/w8s8
    python -m scripts.train --config=configs/laptop/w8s8.py --config.window=6 --workdir=runs/w6s6

Writes config.json, metrics.jsonl and checkpoints/ into the workdir. Ctrl-C and SIGTERM checkpoint
at the next look at the accuracy and end with status 3; a second one ends at once.
"""

import os
import shlex
import signal
import sys
import threading
from typing import Any

from absl import flags

from phasejax.training.config import RunConfig
from scripts import config_flag, running

_CONFIG = config_flag.define_config_flag()
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_SHARD = flags.DEFINE_bool(
    "shard_parameters", False, "Divide parameters over the devices; each has a copy otherwise."
)
_QUIET = flags.DEFINE_bool("quiet", False, "Show nothing but errors.")
flags.mark_flag_as_required("config")


def stop_on_signals() -> threading.Event:
    """An event that the first Ctrl-C or SIGTERM sets; the second ends the process."""
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, _: Any) -> None:
        stop.set()
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        # Not through a console, whose own printing it may have interrupted.
        name = signal.Signals(number).name
        os.write(2, f"\n{name}: saving a checkpoint soon; again to end at once.\n".encode())

    for each in signals:
        signal.signal(each, ask)
    return stop


def train_run(config: RunConfig, workdir: str, *, shard_parameters: bool, quiet: bool) -> bool:
    """Trains with a progress line; returns whether the run is finished."""
    stop = stop_on_signals()
    from phasejax.training.loop import train
    from phasejax.training.sharding import ShardingRules

    rules = ShardingRules(parameters="data" if shard_parameters else None)
    with running.training_progress(config, quiet=quiet) as report:
        trained = train(config, workdir, rules=rules, report=report, stop=stop)
    if not trained.finished:
        running.console.print(
            f"Stopped with a checkpoint at step {trained.position.step}; to continue:"
            f" {shlex.join(sys.orig_argv)}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    return trained.finished


def main(_: list[str]) -> int:
    """Maps flags to arguments."""
    config = config_flag.to_run_config(_CONFIG.value)
    finished = train_run(config, _WORKDIR.value, shard_parameters=_SHARD.value, quiet=_QUIET.value)
    return 0 if finished else running.UNFINISHED


if __name__ == "__main__":
    running.run(main)
