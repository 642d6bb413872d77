# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding on an eighth of the head (the paper's 16 of 128, here 2 of 16).

python -m scripts.train --config=configs/laptop/w8s8_rope_partial.py
--workdir=runs/w8s8_rope_partial
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_rope_partial", window=8, rope_fraction=0.125)
