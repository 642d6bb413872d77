# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The crossed evaluation design: every document at every residue, with matched position moments.

A document's target is moved by shifts 0 .. 3 M - 1, shift = r + M (k + 1): r runs over all M
residues, and k in {-1, 0, 1} is drawn so that the mean and the variance of the target's position
are the same at every residue. With f = (r - (M - 1) / 2) / M and v = 1/2,

    P(k = +1) = (v + f^2 - f) / 2     P(k = -1) = (v + f^2 + f) / 2     P(k = 0) = 1 - v - f^2

gives E[r + M k] = (M - 1) / 2 and Var[r + M k] = M^2 v for every r. Without it a trend along the
context would pass for a dependence on the phase.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from phasejax.tasks.record_lookup import (
    Content,
    Padding,
    Prompts,
    TaskConfig,
    assemble,
    draw_content,
    draw_gaps,
)

SPREAD = 0.5  # v: half of M^2 is the variance of a shift
STEPS_ALLOWED = 3  # by which moments may differ, in steps of M / documents
MISS_LIMIT = STEPS_ALLOWED / 2  # of one residue, so that no two differ by more
REDRAWS = 32
# A third number that is not 0 keeps these draws apart from training batches, of (seed, step).
DOCUMENTS, GAPS = 1, 2


def shift_probabilities(residues: int) -> np.ndarray:
    """Probability of k = -1, 0, +1 for each residue, float64 [M, 3]."""
    f = (np.arange(residues) - (residues - 1) / 2) / residues
    return np.stack([(SPREAD + f**2 + f) / 2, 1 - SPREAD - f**2, (SPREAD + f**2 - f) / 2], axis=1)


@dataclasses.dataclass(frozen=True)
class Moments:
    """How equal the target position's moments are over residues.

    Attributes:
        mean: mean position, over all prompts, in tokens.
        deviation: standard deviation of the position, in tokens.
        mean_spread: largest minus smallest mean over residues, in tokens.
        deviation_spread: largest minus smallest standard deviation over residues, in tokens.
    """

    mean: float
    deviation: float
    mean_spread: float
    deviation_spread: float


def moments(position: np.ndarray) -> Moments:
    """Moments of the target positions of a crossed design, int [documents, M]."""
    mean, deviation = position.mean(0), position.std(0)
    return Moments(
        float(position.mean()), float(position.std()), float(np.ptp(mean)), float(np.ptp(deviation))
    )


def check_moments(position: np.ndarray) -> Moments:
    """The moments, once they are found equal to within what the number of documents allows.

    One document more or less at k changes a residue's mean by M / documents; means and deviations
    may miss by three such steps.

    Raises:
        ValueError: if they differ by more, naming the spreads.
    """
    found = moments(position)
    documents, residues = position.shape
    limit = STEPS_ALLOWED * residues / documents
    if max(found.mean_spread, found.deviation_spread) > limit:
        raise ValueError(
            f"The target position's moments differ over residues: means by {found.mean_spread:.2f}"
            f" and deviations by {found.deviation_spread:.2f} tokens, where {documents} documents"
            f" allow {limit:.2f}. Use more documents, or draw shifts with draw_shifts."
        )
    return found


def draw_shifts(offsets: np.ndarray, residues: int, rng: np.random.Generator) -> np.ndarray:
    """Draws the shift of every (document, residue), int [documents, M].

    k is drawn with the probabilities above; then single draws are changed, the best one first,
    while that brings a residue's mean and standard deviation nearer to their expectations.

    Args:
        offsets: position of each document's target at shift 0, int [documents].
        residues: M.
        rng: randomness.

    Returns:
        shift[d, m] such that (offsets[d] + shift[d, m]) % M == m.
    """
    cumulative = np.cumsum(shift_probabilities(residues), axis=1)
    r = (np.arange(residues) - offsets[:, None]) % residues

    def draw(r: np.ndarray) -> np.ndarray:
        return np.sum(rng.random(r.shape)[..., None] > cumulative[r, :2], axis=-1)

    k = draw(r)
    enough = MISS_LIMIT * residues / len(offsets)
    mean = offsets.mean() + (residues - 1) / 2 + residues
    deviation = np.sqrt(offsets.var() + residues**2 * SPREAD)
    for column in range(residues):
        base = offsets + r[:, column]
        best, miss = _balance(base, k[:, column], residues, mean, deviation)
        for _ in range(REDRAWS):  # where few offsets differ, single changes may come to no end
            if miss <= enough:
                break
            again, its_miss = _balance(base, draw(r[:, column]), residues, mean, deviation)
            if its_miss < miss:
                best, miss = again, its_miss
        k[:, column] = best
    return r + residues * k


def _balance(
    base: np.ndarray, k: np.ndarray, residues: int, mean: float, deviation: float
) -> tuple[np.ndarray, float]:
    """Changes single k until positions base + M k come no nearer to the mean and deviation.

    Returns:
        k, and by how much its mean and deviation miss, added.
    """
    documents, best = len(base), np.inf
    choices = base[:, None] + residues * np.arange(3)
    while True:
        position = choices[np.arange(documents), k]
        first = (position.sum() - position[:, None] + choices) / documents
        second = ((position**2).sum() - (position**2)[:, None] + choices**2) / documents
        miss = np.abs(first - mean) + np.abs(np.sqrt(second - first**2) - deviation)
        document, choice = np.unravel_index(np.argmin(miss), miss.shape)
        if miss[document, choice] > best - 1e-9:
            return k, float(best)
        best = miss[document, choice]
        k = k.copy()
        k[document] = choice


@dataclasses.dataclass(frozen=True)
class CrossedDesign:
    """All evaluation prompts of one padding kind.

    Attributes:
        task: the task.
        padding: how filler moves the target.
        content: what each document says.
        shift: filler tokens before the target beyond its offset, int [documents, M].
        position: position of the target key, int [documents, M]; position % M is the column.
        seed: seed of the documents.
    """

    task: TaskConfig
    padding: Padding
    content: Content
    shift: np.ndarray
    position: np.ndarray
    seed: int

    def batches(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, Prompts]]:
        """Yields (document, residue, prompts), up to `size` prompts at a time."""
        documents, residues = self.shift.shape
        for first in range(0, documents * residues, size):
            flat = np.arange(first, min(first + size, documents * residues))
            document, residue = np.divmod(flat, residues)
            gaps = np.concatenate([self._gaps(d) for d in range(document[0], document[-1] + 1)])
            gaps = gaps[flat - document[0] * residues]
            content = self.content.take(document)
            yield document, residue, assemble(self.task, content, gaps)

    def _gaps(self, document: int) -> np.ndarray:
        """Gaps of one document at every residue, drawn alike whatever the size of a batch."""
        shift = self.shift[document]
        target = np.full(len(shift), self.content.queried[document, -1])
        spread = np.full(len(shift), self.padding == "in_sequence")
        rng = np.random.default_rng([self.seed, document, GAPS])
        return draw_gaps(self.task, shift, target, spread, rng)


def check_lookup(task: TaskConfig) -> None:
    """Checks that prompts can only be answered by looking up the target's key.

    A demonstration says the value of its record, and never of the target's. So at least two records
    must be without one, the target and a distractor: with one, the target is known by elimination,
    and with none, its value stands beside the query. Training may repeat queries, hence shorter
    stages; an evaluation scores one query, which must be worth it.

    Raises:
        ValueError: if fewer are, or if there is one value alone.
    """
    least = task.demonstrations + 2
    if task.num_records < least:
        raise ValueError(
            f"num_records={task.num_records}, but with demonstrations={task.demonstrations} an"
            f" evaluation needs at least {least}: the target and another record that no"
            " demonstration solves, or it is answered without a lookup. Raise num_records or lower"
            " demonstrations."
        )
    if task.num_values < 2:
        raise ValueError(
            f"num_values={task.num_values}, but with one value every answer is the same: raise"
            " num_values to at least 2."
        )


def crossed_design(task: TaskConfig, documents: int, padding: Padding, seed: int) -> CrossedDesign:
    """Draws the documents and their shifts; a pure function of its arguments.

    Raises:
        ValueError: if prompts would not need a lookup, or if the moments of the target position are
            not equal over residues.
    """
    check_lookup(task)
    rng = np.random.default_rng([seed, 0, DOCUMENTS])
    content = draw_content(task, documents, rng)
    # Targets are spread evenly over the records. The demonstrations must stay other records.
    target = np.arange(documents) % task.num_records
    content = dataclasses.replace(content, queried=_with_target(content.queried, target))
    lead = task.context - task.movable
    offsets = lead + target * task.record_length
    shift = draw_shifts(offsets, task.residues, rng)
    position = offsets[:, None] + shift
    check_moments(position)
    return CrossedDesign(task, padding, content, shift, position, seed)


def _with_target(queried: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Puts the target last; where a demonstration asked for it, that one takes the former last."""
    queried = queried.copy()
    demonstrations = queried[:, :-1]
    queried[:, :-1] = np.where(demonstrations == target[:, None], queried[:, -1:], demonstrations)
    queried[:, -1] = target
    return queried
