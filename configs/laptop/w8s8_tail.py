# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Uncompressed tail: only the current incomplete window is kept exact.

python -m scripts.train --config=configs/laptop/w8s8_tail.py --workdir=runs/w8s8_tail
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_tail", window=8, exact_tokens="tail")
