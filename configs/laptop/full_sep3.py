# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The control of the separated series, with 3 filler tokens between key and value.

python -m scripts.train --config=configs/laptop/full_sep3.py --workdir=runs/full_sep3
"""

from configs.laptop.common import ConfigDict, separated


def get_config() -> ConfigDict:
    """The run's flat configuration."""
    return separated("full_sep3", attention="full", separation=3)
