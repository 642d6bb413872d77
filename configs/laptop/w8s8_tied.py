# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Tied K/V: values reuse the normalised, rotated keys.

python -m scripts.train --config=configs/laptop/w8s8_tied.py --workdir=runs/w8s8_tied
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_tied", window=8, tie_kv=True)
