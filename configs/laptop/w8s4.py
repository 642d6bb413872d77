# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Overlap: windows of 8, one every 4 tokens.

python -m scripts.train --config=configs/laptop/w8s4.py --workdir=runs/w8s4
"""

from configs.laptop.common import ConfigDict, short


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return short("w8s4", window=8, stride=4)
