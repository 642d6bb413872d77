# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of 6.

python -m scripts.train --config=configs/laptop/w6s6.py --workdir=runs/w6s6
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w6s6", window=6)
