# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of 2 by the long recipe, to see what more training does to their dip.

python -m scripts.train --config=configs/laptop/w2s2_long.py --workdir=runs/w2s2_long
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w2s2_long", window=2)
