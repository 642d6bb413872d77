# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Trains one run; the same command again continues it.

    python -m scripts.train --config=configs/laptop/w8s8.py --workdir=runs/w8s8
    python -m scripts.train --config=configs/laptop/w8s8.py --config.window=6 --workdir=runs/w6s6

Writes config.json, metrics.jsonl and checkpoints/ into the workdir. SIGTERM checkpoints and ends.
"""

import signal
import threading

from absl import flags

from phasejax.training.config import RunConfig
from scripts import config_flag, running

_CONFIG = config_flag.define_config_flag()
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_QUIET = flags.DEFINE_bool("quiet", False, "Show nothing but errors.")
flags.mark_flag_as_required("config")


def train_run(config: RunConfig, workdir: str, *, quiet: bool) -> bool:
    """Trains with a progress line; returns whether the run is finished."""
    from phasejax.training.loop import train

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with running.training_progress(config, quiet=quiet) as report:
        return train(config, workdir, report=report, stop=stop).finished


def main(_: list[str]) -> int:
    """Maps flags to arguments."""
    config = running.guarded(config_flag.to_run_config, _CONFIG.value)
    finished = running.guarded(train_run, config, _WORKDIR.value, quiet=_QUIET.value)
    return 0 if finished else running.UNFINISHED


if __name__ == "__main__":
    running.run(main)
