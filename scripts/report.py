# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the report again from stored results; trains and evaluates nothing.

python -m scripts.report --stored=runs/quick --report=report
"""

from pathlib import Path

from absl import flags

from scripts import running
from scripts.reproduce import write

_RUNS = flags.DEFINE_string("stored", "runs/quick", "Folder that holds finished runs.")


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    from phasejax.analysis.runs import find_runs

    workdirs = [str(path) for path in find_runs(_RUNS.value)]
    if not workdirs:
        running.fail(
            ValueError(f"stored={_RUNS.value!r} holds no finished run: run make reproduce.")
        )
    path = running.guarded(
        write,
        workdirs,
        Path(flags.FLAGS.report),
        permutations=flags.FLAGS.permutations,
        workdir=Path(_RUNS.value),
    )
    running.console.print(f"Report: {path}", soft_wrap=True)


if __name__ == "__main__":
    running.run(main)
