# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Four KV heads, each with gates and payload maps of its own.

python -m scripts.train --config=configs/laptop/w8s8_4kv.py --workdir=runs/w8s8_4kv
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("w8s8_4kv", window=8, num_kv_heads=4)
