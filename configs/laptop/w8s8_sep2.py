# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""2 filler tokens between key and value, with 16 records, in training and test.

python -m scripts.train --config=configs/laptop/w8s8_sep2.py --workdir=runs/w8s8_sep2
"""

from configs.laptop.common import ConfigDict, separated


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return separated("w8s8_sep2", window=8, separation=2)
