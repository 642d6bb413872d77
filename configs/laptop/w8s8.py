# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The default of the paper: windows of 8 without overlap, learned scalar gates.

python -m scripts.train --config=configs/laptop/w8s8.py --workdir=runs/w8s8
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8", window=8)
