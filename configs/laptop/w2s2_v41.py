# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""V4.1's kind: windows of 2 without overlap or offset bias, vector gates, tied K/V, partial RoPE.

python -m scripts.train --config=configs/laptop/w2s2_v41.py --workdir=runs/w2s2_v41
"""

from configs.laptop.common import ConfigDict, short


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return short(
        "w2s2_v41", window=2, gate="vector", gate_bias=False, tie_kv=True, rope_fraction=0.125
    )
