# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Training metrics as JSON lines: one object for every look at the run."""

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

from phasejax.files import write_atomic

logger = logging.getLogger(__name__)
METRICS_FILE = "metrics.jsonl"


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows logged so far; none where nothing was, and a half-written last line is left out.

    Raises:
        ValueError: another line is not JSON; the message names the file and the line.
    """
    path = Path(workdir) / METRICS_FILE
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise ValueError(
                    f"{path}:{number} is not JSON ({error}): delete the line, or train again."
                ) from error
            logger.warning("%s: the last line is cut off and was left out", path)
    return rows


class MetricsLog:
    """Appends rows; rows past the step that a run resumes from are dropped first."""

    def __init__(self, workdir: str | os.PathLike, *, resume_step: int):
        kept = [row for row in read_metrics(workdir) if row["step"] <= resume_step]
        path = Path(workdir) / METRICS_FILE
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = path.open("a")

    def write(self, row: dict[str, Any]) -> None:
        """Appends one row, on disk at return; numbers that are not finite become null."""
        finite = {
            k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()
        }
        self._file.write(json.dumps(finite) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
