# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of 4.

python -m scripts.train --config=configs/laptop/w4s4.py --workdir=runs/w4s4
"""

from configs.laptop.common import ConfigDict, short


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return short("w4s4", window=4)
