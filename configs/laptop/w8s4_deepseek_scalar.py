# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's DeepSeek-style kernel (w8s4_deepseek) with one score a token.

python -m scripts.train --config=configs/laptop/w8s4_deepseek_scalar.py
--workdir=runs/w8s4_deepseek_scalar
"""

from configs.laptop.common import ConfigDict, short


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return short("w8s4_deepseek_scalar", window=8, stride=4, tie_kv=True, rope_fraction=0.125)
