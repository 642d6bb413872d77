# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or absent, whenever the process that writes them ends."""

import os
from pathlib import Path


def write_atomic(path: Path, text: str) -> None:
    """Writes a file such that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
