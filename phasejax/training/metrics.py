# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Training metrics as JSON lines: one object for every look at the run."""

import json
import math
import os
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows logged so far; a half-written last line is left out."""
    path = Path(workdir) / METRICS_FILE
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class MetricsLog:
    """Appends rows; rows past the step that a run resumes from are dropped first."""

    def __init__(self, workdir: str | os.PathLike, *, resume_step: int):
        kept = [row for row in read_metrics(workdir) if row["step"] <= resume_step]
        path = Path(workdir) / METRICS_FILE
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        os.replace(temporary, path)
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
