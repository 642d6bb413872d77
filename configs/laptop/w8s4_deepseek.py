# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The compression kernel of DeepSeek-V4: W8/S4, vector gates, tied K/V, partial RoPE.

python -m scripts.train --config=configs/laptop/w8s4_deepseek.py --workdir=runs/w8s4_deepseek
"""

from configs.laptop.common import ConfigDict, short


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return short(
        "w8s4_deepseek", window=8, stride=4, gate="vector", tie_kv=True, rope_fraction=0.125
    )
