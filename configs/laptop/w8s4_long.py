# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Overlapping windows by the long recipe, to see what more training does to their dip.

python -m scripts.train --config=configs/laptop/w8s4_long.py --workdir=runs/w8s4_long
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s4_long", window=8, stride=4)
