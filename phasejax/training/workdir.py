# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run's working directory: its configuration, and the refusal to mix two runs in one folder."""

import json
import os
from pathlib import Path

from phasejax.files import write_atomic
from phasejax.training.config import RunConfig

CONFIG_FILE = "config.json"


def read_config(workdir: str | os.PathLike) -> RunConfig:
    """The configuration of the run in workdir.

    Raises:
        ValueError: if there is none or it cannot be read, naming the file.
    """
    path = Path(workdir) / CONFIG_FILE
    if not path.is_file():
        raise ValueError(
            f"workdir={str(workdir)!r} holds no run: {path} is missing. Train into it first."
        )
    try:
        flat = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not readable JSON ({error}): restore it or use another workdir."
        ) from error
    if not isinstance(flat, dict):
        raise ValueError(
            f"{path} is not a config but {flat!r:.40}: restore it or use another workdir."
        )
    return RunConfig.from_flat(flat)


def claim_workdir(workdir: str | os.PathLike, config: RunConfig) -> None:
    """Makes workdir this run's, or checks that it already is.

    Raises:
        ValueError: if it holds a run of another configuration, naming the fields that differ.
    """
    directory = Path(workdir)
    path = directory / CONFIG_FILE
    wanted = json.loads(json.dumps(config.flat()))
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(wanted, indent=2, allow_nan=False) + "\n")
        return
    found = json.loads(json.dumps(read_config(directory).flat()))
    differing = [
        f"{name}: {found[name]!r} there, {wanted[name]!r} asked"
        for name in wanted
        if found[name] != wanted[name]
    ]
    if differing:
        raise ValueError(
            f"workdir={str(workdir)!r} holds a run of another config ({'; '.join(differing)}):"
            " choose another workdir or the same config."
        )
