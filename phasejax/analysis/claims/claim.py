# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a claim is, and what the rules of all claims share."""

import dataclasses
from typing import Any

from phasejax.analysis.verdicts import Entry

SHOWN, PARTLY, NOT_SHOWN, NOT_TESTED = "shown", "shown in part", "not shown", "not tested"
LEVEL = 0.05


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of the paper and what became of it.

    Attributes:
        key: short name.
        title: the claim, a sentence.
        status: SHOWN, PARTLY, NOT_SHOWN or NOT_TESTED.
        text: the numbers behind the status.
    """

    key: str
    title: str
    status: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """Plain JSON."""
        return dataclasses.asdict(self)


def status_of(hits: int, runs: int) -> str:
    """Status of a claim that each of some runs should show."""
    return SHOWN if hits == runs else PARTLY if hits else NOT_SHOWN


def compressed(summary: dict[str, Any]) -> list[Entry]:
    """Entries of all runs but the controls."""
    return [entry for entry in summary["runs"] if not entry["control"]]


def controls_of(summary: dict[str, Any], entry: Entry | None = None) -> list[Entry]:
    """Controls, of one entry's recipe if given."""
    return [
        run
        for run in summary["runs"]
        if run["control"] and (entry is None or run["recipe"] == entry["recipe"])
    ]
