# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the report again from stored results; trains and evaluates nothing.

python -m scripts.report --stored=runs/quick --report=report
"""

from pathlib import Path

from absl import flags

from scripts import running

_STORED = flags.DEFINE_string("stored", "runs/quick", "Folder that holds finished runs.")
_REPORT = flags.DEFINE_string("report", "report", "Folder of the report.")
_PERMUTATIONS = flags.DEFINE_integer(
    "permutations", 9999, "Permutations of every test.", lower_bound=99
)


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    from phasejax.analysis.runs import find_runs

    stored, report = Path(_STORED.value), Path(_REPORT.value)
    workdirs = list(find_runs(stored))
    if not workdirs:
        raise ValueError(f"--stored={stored} holds no finished run: run make reproduce first.")
    running.check_folder("--report", report)
    path = running.write_report(
        workdirs,
        report,
        permutations=_PERMUTATIONS.value,
        seconds=lambda: running.read_seconds(stored),  # of the job, to which this adds nothing
    )
    running.console.print(f"Report: {path}", soft_wrap=True)


if __name__ == "__main__":
    running.run(main, first="stored")
