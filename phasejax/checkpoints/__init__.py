# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of runs, and models from and to Hugging Face directories.

A run needs nothing of the latter, so the names below import their module when they are first used.
"""

from typing import TYPE_CHECKING

from phasejax._lazy import lazy_names

if TYPE_CHECKING:
    from phasejax.checkpoints.hugging_face import convert_hf, from_hf, to_hf

__all__ = ["convert_hf", "from_hf", "to_hf"]

__getattr__, __dir__ = lazy_names(
    __name__, dict.fromkeys(__all__, "phasejax.checkpoints.hugging_face")
)
