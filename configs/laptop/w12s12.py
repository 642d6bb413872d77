# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of 12.

python -m scripts.train --config=configs/laptop/w12s12.py --workdir=runs/w12s12
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w12s12", window=12)
