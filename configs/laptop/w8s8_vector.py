# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Vector gates: one score a channel.

python -m scripts.train --config=configs/laptop/w8s8_vector.py --workdir=runs/w8s8_vector
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_vector", window=8, gate="vector")
