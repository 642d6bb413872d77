# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The --config flag: a Python file whose get_config() returns the flat view of a run."""

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
    except OSError as error:
        raise ValueError(str(error)) from error
    return RunConfig.from_flat(values)


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
