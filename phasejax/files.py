# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or absent, whenever the process that writes them ends, and their folders."""

import contextlib
import os
import tempfile
from pathlib import Path


def write_error(folder: Path) -> OSError | None:
    """Why a folder, which is made if need be, cannot be written to; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error


def write_atomic(path: Path, text: str) -> None:
    """Writes a file such that a reader sees the old content or the new, never a part.

    Raises:
        OSError: naming the file, if it cannot be written; what was begun is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
