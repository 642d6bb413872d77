# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Uniform averaging: every offset weighs 1/8, payload maps stay per offset.

python -m scripts.train --config=configs/laptop/w8s8_uniform.py --workdir=runs/w8s8_uniform
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_uniform", window=8, gate="uniform")
