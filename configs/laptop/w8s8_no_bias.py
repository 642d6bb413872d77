# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""No gate bias.

python -m scripts.train --config=configs/laptop/w8s8_no_bias.py --workdir=runs/w8s8_no_bias
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_no_bias", window=8, gate_bias=False)
