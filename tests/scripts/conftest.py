# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts that define flags of the same names can be imported by tests of one process."""

import pytest
from absl import flags


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Forgets the flags of scripts that other tests imported; only their main reads them."""
    if isinstance(collector, pytest.Module):
        for module, defined in list(flags.FLAGS.flags_by_module_dict().items()):
            if module.startswith("scripts."):
                for flag in list(defined):
                    delattr(flags.FLAGS, flag.name)
