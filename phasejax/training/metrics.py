# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Training metrics as JSON lines: one object for every look at the run."""

import errno
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

from phasejax.files import write_atomic

logger = logging.getLogger(__name__)
METRICS_FILE = "metrics.jsonl"


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line, or None if the line is damaged."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows logged so far; none where nothing was, and a damaged end is left out with a warning.

    Raises:
        ValueError: a row follows a damaged line; the message names the file and the line.
    """
    path = Path(workdir) / METRICS_FILE
    if not path.is_file():
        return []
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    rows = [_parse(line) for line in lines]
    whole = next((i for i, row in enumerate(rows) if row is None), len(rows))
    if any(row is not None for row in rows[whole:]):
        raise ValueError(
            f"{path}:{whole + 1} is not a row of metrics ({lines[whole]!r:.60}), and rows follow:"
            " delete the line, or train again in another workdir."
        )
    if whole < len(rows) and lines != [b""]:
        logger.warning("%s: the end, from line %d on, is damaged and was left out", path, whole + 1)
    return [row for row in rows if row is not None]


class MetricsLog:
    """Appends rows; rows past the step that a run resumes from are dropped first.

    Rows before it that are lost are said: the run goes on without them.
    """

    def __init__(self, workdir: str | os.PathLike, *, resume_step: int):
        kept = [row for row in read_metrics(workdir) if row["step"] <= resume_step]
        self._path = path = Path(workdir) / METRICS_FILE
        last = kept[-1]["step"] if kept else 0
        if last < resume_step:
            logger.warning(
                "%s: rows of steps %d to %d are lost; the run goes on", path, last + 1, resume_step
            )
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = path.open("ab", buffering=0)

    def write(self, row: dict[str, Any]) -> None:
        """Appends one row, on disk at return; numbers that are not finite become null.

        Raises:
            OSError: naming the file, if the disk is full.
        """
        finite = {
            k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()
        }
        line = json.dumps(finite).encode() + b"\n"
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
