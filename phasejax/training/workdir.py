# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run's working directory: its configuration, and the refusal to mix two runs in one folder."""

import contextlib
import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phasejax.files import write_atomic
from phasejax.training.config import RunConfig
from phasejax.training.metrics import METRICS_FILE

logger = logging.getLogger(__name__)
CONFIG_FILE = "config.json"
LOCK_FILE = "lock"  # holds the number of the process that trains, or was the last to
CHECKPOINTS = "checkpoints"
STARTED = "checkpointed"  # a file that says that checkpoints were written
RESULTS = "results"
MADE_BY_A_RUN = (CHECKPOINTS, STARTED, METRICS_FILE, RESULTS, "gates.zarr")
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def _folder(workdir: str | os.PathLike) -> Path:
    if not os.fspath(workdir):
        raise ValueError("workdir='' is empty: name a folder, such as runs/NAME.")
    return Path(workdir)


@contextlib.contextmanager
def locked(workdir: str | os.PathLike) -> Iterator[None]:
    """Makes workdir if it is missing, and keeps every other process from training into it.

    The lock ends with the process, however that ends.

    Raises:
        ValueError: if workdir is no folder, or another process has it, naming that.
    """
    directory = _folder(workdir)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(
            f"workdir={str(workdir)!r} is not a folder, or lies below a file: name another."
        ) from error
    with (directory / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ValueError(
                f"workdir={str(workdir)!r} is in use by process {file.read().strip() or '?'}: wait"
                " for its end or stop it, or choose another workdir."
            ) from error
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            logger.warning(
                "%s lies on a file system without locks (%s): let nothing else train into it.",
                directory,
                error,
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def read_config(workdir: str | os.PathLike) -> RunConfig:
    """The configuration of the run in workdir.

    Raises:
        ValueError: if there is none or it cannot be read, naming the file.
    """
    path = _folder(workdir) / CONFIG_FILE
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


def differences(there: dict[str, Any], here: dict[str, Any], where: str) -> list[str]:
    """Fields that two flat views have and that differ, each with both values."""
    return [
        f"{name}: {there[name]!r} there, {value!r} {where}"
        for name, value in here.items()
        if name in there and there[name] != value
    ]


def check_same_run(found: dict[str, Any], config: RunConfig, what: str) -> None:
    """Checks that a stored configuration is this one.

    Args:
        found: the flat view; fields that it lacks have their defaults.
        config: the run asked for.
        what: subject of the message.

    Raises:
        ValueError: naming the fields that differ.
    """
    there, asked = (json.loads(json.dumps(c.flat())) for c in (RunConfig.from_flat(found), config))
    differing = differences(there, asked, "asked")
    if differing:
        raise ValueError(
            f"{what} of another config ({'; '.join(differing)}): choose another workdir or the"
            " same config."
        )


def claim_workdir(workdir: str | os.PathLike, config: RunConfig) -> None:
    """Makes workdir this run's, or checks that it already is.

    Raises:
        ValueError: if it, or a result in it, is of another configuration, naming the fields that
            differ; or if it holds what a run made and no configuration.
    """
    directory = _folder(workdir)
    path = directory / CONFIG_FILE
    if not path.exists():
        orphans = [name for name in MADE_BY_A_RUN if (directory / name).exists()]
        if orphans:
            raise ValueError(
                f"workdir={str(workdir)!r} holds {', '.join(orphans)}, but {CONFIG_FILE}, which"
                f" says of what run, is missing: restore it, or choose another workdir."
            )
        directory.mkdir(parents=True, exist_ok=True)
        flat = json.loads(json.dumps(config.flat()))
        write_atomic(path, json.dumps(flat, indent=2, allow_nan=False) + "\n")
        return
    check_same_run(read_config(directory).flat(), config, f"workdir={str(workdir)!r} holds a run")
    for result in sorted((directory / RESULTS).glob("*.json")):
        with contextlib.suppress(OSError, json.JSONDecodeError, UnicodeDecodeError):
            found = json.loads(result.read_text(encoding="utf-8"))
            if isinstance(found, dict) and isinstance(found.get("config"), dict):
                check_same_run(found["config"], config, f"{result} is")
