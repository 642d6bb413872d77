# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls scripts as `python -m` does, but imports JAX once for all calls: for those that fail early.

Reads [[script, argument, ...], ...] as JSON and prints [[exit status, what was written], ...].
"""

import json
import os
import runpy
import sys
import tempfile
import traceback

import jax  # noqa: F401
import ml_collections  # noqa: F401
import rich.progress  # noqa: F401

import phasejax.training.config  # noqa: F401


def call(script: str, *arguments: str) -> tuple[int, str]:
    """Exit status and output of a script in a fork of this process."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os._exit(run(script, arguments))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def run(script: str, arguments: tuple[str, ...]) -> int:
    """Exit status of a script in this process."""
    sys.argv = [script, *arguments]
    try:
        runpy.run_module(f"scripts.{script}", run_name="__main__", alter_sys=True)
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    json.dump([call(*case) for case in json.load(sys.stdin)], sys.stdout)
