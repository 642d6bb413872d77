# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of the paper that a report puts beside its own.

Source: Zhu et al., "Periodic Weak Spots: Phase Sensitivity from Chunked KV-Cache Compression",
arXiv:2609.36322 (2026), in the data files' `source`. Percent and points, as printed there.
"""

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

import numpy as np

from phasejax.analysis.variants import Variant
from phasejax.statistics import wilson

CITATION = (
    "Zhu, Yi, Cheng, Lv, Liu, Ying, Ma, Dong: Periodic Weak Spots: Phase Sensitivity from Chunked"
    " KV-Cache Compression, arXiv:2609.36322 (2026)"
)


@dataclasses.dataclass(frozen=True)
class PaperProfile:
    """One evaluation of one of the paper's runs, in percent.

    Attributes:
        accuracy: by residue modulo 24.
        mean: printed mean.
        gap: printed gap over the 24 residues, in points.
        mean_interval: 95% interval of the mean; None where the paper gives none.
        gap_interval: the same of the gap.
    """

    accuracy: tuple[float, ...]
    mean: float
    gap: float
    mean_interval: tuple[float, float] | None
    gap_interval: tuple[float, float] | None

    @property
    def worst(self) -> float:
        """Accuracy of the worst residue."""
        return min(self.accuracy)

    def folded(self, period: int) -> np.ndarray:
        """Mean accuracy of each phase, [P]; the period divides 24."""
        return np.reshape(self.accuracy, (-1, period)).mean(axis=0)


@dataclasses.dataclass(frozen=True)
class PaperRun:
    """One of the paper's 26 controlled runs.

    Attributes:
        name: the paper's name.
        variant: what it compares to.
        seed: training seed; None for the controls, where it is not stated.
        loss: validation loss after 100B tokens.
        prefix: prefix padding.
        in_sequence: in-sequence padding; None for the controls.
    """

    name: str
    variant: Variant
    seed: int | None
    loss: float
    prefix: PaperProfile
    in_sequence: PaperProfile | None


@dataclasses.dataclass(frozen=True)
class NeedleRow:
    """The 128K needle test of one DeepSeek model.

    Attributes:
        name: the model.
        stage: "pre-trained" or "post-trained".
        stride: S of its compressor.
        prompts: prompts at each residue.
        correct: correct answers at each residue modulo 8.
    """

    name: str
    stage: str
    stride: int
    prompts: int
    correct: tuple[int, ...]

    @property
    def accuracy(self) -> np.ndarray:
        """Percent at each residue, [8]."""
        return 100 * np.array(self.correct) / self.prompts

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Wilson 95% ends at each residue, in percent, each [8]."""
        low, high = wilson(np.array(self.correct), self.prompts)
        return 100 * low, 100 * high


def _read(name: str) -> dict[str, Any]:
    file = resources.files("phasejax.analysis") / "data" / name
    return json.loads(file.read_text(encoding="utf-8"))


def _profile(data: dict[str, Any] | None) -> PaperProfile | None:
    if data is None:
        return None
    values = {}
    for name in ("mean", "gap"):
        value, low, high = data[name]
        values |= {name: value, f"{name}_interval": None if low is None else (low, high)}
    return PaperProfile(accuracy=tuple(data["accuracy"]), **values)


@functools.cache
def paper_runs() -> tuple[PaperRun, ...]:
    """The 26 controlled runs, three full-attention controls last."""
    runs = []
    for data in _read("paper_runs.json")["runs"]:
        prefix = _profile(data["prefix"])
        if prefix is None:
            raise ValueError(f"{data['name']} has no prefix evaluation in paper_runs.json.")
        variant = Variant(**data["variant"])
        in_sequence = _profile(data["in_sequence"])
        runs.append(
            PaperRun(data["name"], variant, data["seed"], data["loss"], prefix, in_sequence)
        )
    return tuple(runs)


def paper_runs_like(variant: Variant) -> tuple[PaperRun, ...]:
    """The paper's runs of a variant: four seeds of W8/S8, one of most others, none of some."""
    return tuple(run for run in paper_runs() if run.variant == variant)


@functools.cache
def needle_rows() -> tuple[NeedleRow, ...]:
    """The five DeepSeek models of the 128K needle test."""
    return tuple(
        NeedleRow(**row | {"correct": tuple(row["correct"])})
        for row in _read("paper_needle.json")["models"]
    )
