# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of 2.

python -m scripts.train --config=configs/laptop/w2s2.py --workdir=runs/w2s2
"""

from configs.laptop.common import ConfigDict, short


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return short("w2s2", window=2)
