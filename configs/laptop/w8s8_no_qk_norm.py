# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Queries and keys skip RMSNorm.

python -m scripts.train --config=configs/laptop/w8s8_no_qk_norm.py --workdir=runs/w8s8_no_qk_norm
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_no_qk_norm", window=8, qk_norm=False)
