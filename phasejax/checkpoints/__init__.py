# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of runs, and models from and to Hugging Face directories."""

from phasejax.checkpoints.hugging_face import convert_hf, from_hf, to_hf

__all__ = ["convert_hf", "from_hf", "to_hf"]
