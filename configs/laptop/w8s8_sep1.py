# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""1 filler token between key and value, with 16 records, in training and test.

python -m scripts.train --config=configs/laptop/w8s8_sep1.py --workdir=runs/w8s8_sep1
"""

from configs.laptop.common import ConfigDict, separated


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return separated("w8s8_sep1", window=8, separation=1)
