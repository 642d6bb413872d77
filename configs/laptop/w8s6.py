# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Overlap: windows of 8, one every 6 tokens.

python -m scripts.train --config=configs/laptop/w8s6.py --workdir=runs/w8s6
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s6", window=8, stride=6)
