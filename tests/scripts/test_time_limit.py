# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that hang, fail or take their process down with them."""

import pytest

from scripts.time_limit import Worker


def test_a_worker_outlives_what_it_calls():
    worker = Worker(eval)
    try:
        assert worker("6 * 7", timeout=60) == 42
        with pytest.raises(RuntimeError, match="^ZeroDivisionError: division by zero$"):
            worker("1 / 0", timeout=60)
        with pytest.raises(TimeoutError, match="no result after 0.5 s"):
            worker("__import__('time').sleep(60)", timeout=0.5)
        with pytest.raises(ChildProcessError):
            worker("__import__('os')._exit(0)", timeout=60)
        assert worker("6 * 7", timeout=60) == 42
    finally:
        worker.close()
