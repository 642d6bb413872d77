# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's DeepSeek-style kernel: W8/S4, vector gates, tied K/V, partial RoPE, and nothing else.

It is the paper's own decoder with these changes, not DeepSeek-V4, which is in
phasejax/models/deepseek_v4. The paper does not say where its entries stand for RoPE: here at their
first token, as in every run, so that w8s4 is its baseline. DeepSeek-V4 puts them at the first token
of the newest stride: --config.rotary_anchor=stride_start does, and is another run.

python -m scripts.train --config=configs/laptop/w8s4_deepseek.py --workdir=runs/w8s4_deepseek
"""

from configs.laptop.common import ConfigDict, short


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return short(
        "w8s4_deepseek", window=8, stride=4, gate="vector", tie_kv=True, rope_fraction=0.125
    )
