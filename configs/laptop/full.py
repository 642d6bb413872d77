# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The control: full attention. It should learn the lookup and show no period.

python -m scripts.train --config=configs/laptop/full.py --workdir=runs/full
"""

from configs.laptop.common import ConfigDict, laptop


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return laptop("full", attention="full")
