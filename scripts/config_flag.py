# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The --config flag: a Python file whose get_config() returns the flat view of a run."""

import runpy
import traceback
from pathlib import Path

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from phasejax.training.config import RunConfig, flat_fields
from phasejax.validation import nearest


def define_config_flag(default: str | None = None) -> flags.FlagHolder:
    """Defines --config=FILE and --config.FIELD=VALUE."""
    return config_flags.DEFINE_config_file(
        "config",
        default,
        "Python file with get_config(); --config.FIELD=VALUE changes a field.",
        lock_config=True,
    )


def to_run_config(flat: ConfigDict) -> RunConfig:
    """The checked configuration.

    Raises:
        ValueError: with the message of the check that failed, or if the file cannot be loaded.
    """
    try:
        values = flat.to_dict()
    except OSError as error:  # of a default, which may lie elsewhere
        raise ValueError(str(error)) from error
    return RunConfig.from_flat(values)


def check_file(argv: list[str]) -> None:
    """Loads the file of --config by itself first, to say in which of its lines a mistake is.

    Raises:
        app.UsageError: if it is missing, cannot be executed or gives no ConfigDict.
    """
    path = _path(argv)
    if path is None:
        return
    if not path:
        raise app.UsageError("--config has an empty value: name a file, such as those in configs/.")
    if not Path(path).is_file():
        raise app.UsageError(f"--config={path} is not a file: name one, such as those in configs/.")
    try:
        module = runpy.run_path(path)
        if "get_config" not in module:
            raise app.UsageError(
                f"{path} has no get_config(): define it, and let it return a ConfigDict."
            )
        made = module["get_config"]()
    except app.UsageError:
        raise
    except Exception as error:
        said = error.msg if isinstance(error, SyntaxError) else error
        raise app.UsageError(
            f"{path}, line {_line(error, path)}: {type(error).__name__}: {said} (mend the file)"
        ) from error
    if not isinstance(made, ConfigDict):
        raise app.UsageError(
            f"{path}: get_config() returns {type(made).__name__}: let it return a ConfigDict."
        )


def _path(argv: list[str]) -> str | None:
    for i, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name in ("--config", "-config"):
            return value if equals else "".join(argv[i + 1 : i + 2])
    return None


def _line(error: Exception, path: str) -> int | None:
    """Line of the file at which an error arose, though it may be raised further in."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    return lines[-1] if lines else None


def check_fields(argv: list[str]) -> None:
    """Names the closest field to a misspelt --config.FIELD, before flags are parsed.

    Raises:
        app.UsageError: for the first unknown field.
    """
    known = flat_fields()
    for argument in argv:
        if argument.startswith(("--config.", "-config.")):
            name = argument.split("=")[0].split(".", 1)[1]
            if name not in known:
                raise app.UsageError(f"Unknown config field {name!r}: {nearest(name, known)}")
