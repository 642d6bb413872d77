# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates a trained run: every document at every residue, under both paddings.

    python -m scripts.evaluate --workdir=runs/w8s8

Writes results/prefix.*, results/in_sequence.* and gates.zarr into the workdir, and prints the
accuracy by phase.
"""

from pathlib import Path

from absl import flags

from scripts import running

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a finished run.", required=True)
_QUIET = flags.DEFINE_bool("quiet", False, "Show nothing but errors.")


def evaluate_run(workdir: str, *, quiet: bool) -> None:
    """Evaluates with a progress bar and shows the profile."""
    from phasejax.evals.evaluate import RESULTS, evaluate

    for path in (Path(workdir), Path(workdir, RESULTS)):
        if path.exists():  # of a run; it is not for an evaluation to make one
            running.check_folder("--workdir:", path)
    with running.evaluation_progress(quiet=quiet) as report:
        evaluate(workdir, report=report)
    if not quiet:
        running.show_profiles(workdir)


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    evaluate_run(_WORKDIR.value, quiet=_QUIET.value)


if __name__ == "__main__":
    running.run(main, first="workdir")
