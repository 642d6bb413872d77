# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The control of the short recipe: full attention.

python -m scripts.train --config=configs/laptop/full_short.py --workdir=runs/full_short
"""

from configs.laptop.common import ConfigDict, short


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return short("full_short", attention="full")
