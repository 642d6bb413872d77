# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Uniform averaging, tied K/V and a norm after the payload projection.

python -m scripts.train --config=configs/laptop/w8s8_uniform_tied_postnorm.py
--workdir=runs/w8s8_uniform_tied_postnorm
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop(
        "w8s8_uniform_tied_postnorm", window=8, gate="uniform", tie_kv=True, post_norm=True
    )
