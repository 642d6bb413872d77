# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""No rotary embedding at all.

python -m scripts.train --config=configs/laptop/w8s8_no_rope.py --workdir=runs/w8s8_no_rope
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_no_rope", window=8, rope_fraction=0.0)
