# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Record lookup: find a key among records and say the value that follows it.

The paper's task (section "Evaluation A"), over single tokens.

A prompt is

    filler and records  |  key value key value ... key
    context tokens      |  demonstrations, then the query

A record is a single-token key, `separation` filler tokens and a single-token value. The records
and the query stand at fixed distances from the end; only filler moves a record, either before all
of them (prefix padding: all records move together) or also between them (in-sequence padding: the
phases of the other records do not move in lockstep with the target's).
"""

import dataclasses
from typing import Literal

import numpy as np

from phasejax.validation import check_at_least, check_fields

Padding = Literal["prefix", "in_sequence"]
PADDINGS: tuple[Padding, ...] = ("prefix", "in_sequence")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What the prompts are made of.

    Attributes:
        num_records: records in the context.
        context: tokens before the first demonstration; records and filler fill it exactly.
        num_keys: distinct key tokens; the keys of one prompt are distinct.
        num_values: distinct value tokens, drawn independently.
        num_fillers: distinct filler tokens.
        separation: filler tokens between a key and its value.
        demonstrations: solved queries before the last one.
        span: the records stay within the last span tokens of the context, filler fills the rest;
            None means the whole context. A curriculum widens it at one prompt length, hence one
            compilation.
        residues: M, a multiple of every stride that is compared.

    Raises:
        ValueError: if the records, moved over 3 M residues, do not fit the context.
    """

    num_records: int = 20
    context: int = 113
    num_keys: int = 64
    num_values: int = 64
    num_fillers: int = 8
    separation: int = 0
    demonstrations: int = 7
    span: int | None = None
    residues: int = 24

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("num_records", "num_values", "num_fillers", "residues"):
            check_at_least(self, name, 1)
        for name in ("separation", "demonstrations"):
            check_at_least(self, name, 0)
        if self.num_keys < self.num_records:
            raise ValueError(
                f"num_keys={self.num_keys} is smaller than num_records={self.num_records}: the keys"
                " of a prompt are distinct, so raise num_keys."
            )
        if not 1 <= self.movable <= self.context:
            raise ValueError(
                f"span={self.span} is not within 1 .. context={self.context}: lower span or"
                " raise context."
            )
        need = self.record_tokens + self.max_shift
        if self.movable < need:
            name = "context" if self.span is None else "span"
            raise ValueError(
                f"{name}={self.movable} is too short: {self.num_records} records of"
                f" {self.record_length} tokens moved over 3 x residues={self.residues} need {need}"
                f" tokens. Raise {name}, or lower num_records or residues."
            )

    @property
    def record_length(self) -> int:
        """Tokens of one record."""
        return 2 + self.separation

    @property
    def record_tokens(self) -> int:
        """Tokens of all records."""
        return self.num_records * self.record_length

    @property
    def movable(self) -> int:
        """Tokens among which the records move."""
        return self.context if self.span is None else self.span

    @property
    def free(self) -> int:
        """Filler tokens that can stand before, between or after the records."""
        return self.movable - self.record_tokens

    @property
    def max_shift(self) -> int:
        """Largest shift of the target: every residue in each of three periods of M."""
        return 3 * self.residues - 1

    @property
    def num_queries(self) -> int:
        """Queries that a training prompt scores: the demonstrations and the last one."""
        return self.demonstrations + 1

    @property
    def guess_accuracy(self) -> float:
        """Accuracy of naming the value of a random record that no demonstration has solved.

        What a model reaches that reads values but no keys; values repeat, so one that belongs to
        another record is right once in num_values.
        """
        hit = 1 / max(1, self.num_records - self.demonstrations)
        return hit + (1 - hit) / self.num_values

    @property
    def prompt_length(self) -> int:
        """T, tokens of a prompt; the last one is the query."""
        return self.context + 2 * self.demonstrations + 1

    @property
    def query_positions(self) -> np.ndarray:
        """Positions of all queries, int32 [num_queries]; a prompt's own query is the last."""
        return np.arange(self.context, self.prompt_length, 2, dtype=np.int32)

    @property
    def vocab_size(self) -> int:
        """Fillers, then keys, then values."""
        return self.num_fillers + self.num_keys + self.num_values


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A batch of prompts.

    Attributes:
        tokens: int32 [B, T].
        answers: value token that answers each query, int32 [B, num_queries].
        key_positions: position of the key that each query asks for, int32 [B, num_queries].
    """

    tokens: np.ndarray
    answers: np.ndarray
    key_positions: np.ndarray


@dataclasses.dataclass(frozen=True)
class Content:
    """What a batch of prompts says, apart from where it stands.

    Attributes:
        keys: int32 [B, num_records], distinct in a row.
        values: int32 [B, num_records].
        fillers: filler tokens in the order in which they are used, int32 [B, context].
        queried: record that each query asks for, int32 [B, num_queries]; the last is the target.
    """

    keys: np.ndarray
    values: np.ndarray
    fillers: np.ndarray
    queried: np.ndarray

    def take(self, rows: np.ndarray) -> "Content":
        """Some of the prompts."""
        return Content(*(getattr(self, f.name)[rows] for f in dataclasses.fields(self)))


def draw_content(task: TaskConfig, batch: int, rng: np.random.Generator) -> Content:
    """Draws keys, values, fillers and queries.

    The queries of a prompt are distinct where there are more records than queries. Where not, they
    repeat at random: repeats at a fixed distance would teach copying by position instead of looking
    up, and asking for every record once would give the last answer away by elimination.
    """
    keys = np.argsort(rng.random((batch, task.num_keys), np.float32), axis=1)[:, : task.num_records]
    if task.num_records > task.num_queries:
        order = np.argsort(rng.random((batch, task.num_records), np.float32), axis=1)
        queried = order[:, : task.num_queries].astype(np.int32)
    else:
        queried = rng.integers(task.num_records, size=(batch, task.num_queries), dtype=np.int32)
    values = rng.integers(task.num_values, size=(batch, task.num_records), dtype=np.int32)
    fillers = rng.integers(task.num_fillers, size=(batch, task.context), dtype=np.int32)
    return Content(
        keys=(keys + task.num_fillers).astype(np.int32),
        values=values + (task.num_fillers + task.num_keys),
        fillers=fillers,
        queried=queried,
    )


def draw_gaps(
    task: TaskConfig,
    before: np.ndarray,
    target: np.ndarray,
    padding: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Spreads the filler over the gaps before, between and after the records.

    Args:
        task: the task.
        before: filler tokens that stand before the target, int [B].
        target: index of the target record, int [B].
        padding: whether a prompt spreads its filler (in-sequence padding), bool [B].
        rng: randomness.

    Returns:
        Length of the gap before each record and after the last, int32 [B, num_records + 1].
    """
    batch, free = len(before), task.free
    unit = rng.random((batch, free), np.float32)
    is_before = np.arange(free) < before[:, None]
    target = target[:, None]
    spread = np.where(
        is_before, unit * (target + 1), target + 1 + unit * (task.num_records - target)
    ).astype(np.int32)
    slot = np.where(padding[:, None], spread, np.where(is_before, 0, task.num_records))
    slot = np.minimum(slot, task.num_records)
    flat = slot + np.arange(batch)[:, None] * (task.num_records + 1)
    counts = np.bincount(flat.ravel(), minlength=batch * (task.num_records + 1))
    gaps = counts.reshape(batch, task.num_records + 1).astype(np.int32)
    gaps[:, 0] += task.context - task.movable
    return gaps


def assemble(task: TaskConfig, content: Content, gaps: np.ndarray) -> Prompts:
    """Lays content out: records after their gaps, fillers elsewhere, then the queries."""
    batch = len(gaps)
    index = np.arange(task.num_records, dtype=np.int32) * task.record_length
    key_at = np.cumsum(gaps[:, :-1], axis=1, dtype=np.int32) + index
    value_at = key_at + 1 + task.separation
    is_record = np.zeros((batch, task.context), bool)
    np.put_along_axis(is_record, key_at, True, axis=1)
    np.put_along_axis(is_record, value_at, True, axis=1)
    nth_filler = np.maximum(np.cumsum(~is_record, axis=1, dtype=np.int32) - 1, 0)
    tokens = np.empty((batch, task.prompt_length), np.int32)
    context = np.take_along_axis(content.fillers, nth_filler, axis=1)
    np.put_along_axis(context, key_at, content.keys, axis=1)
    np.put_along_axis(context, value_at, content.values, axis=1)
    answers = np.take_along_axis(content.values, content.queried, axis=1)
    tokens[:, : task.context] = context
    tokens[:, task.context :: 2] = np.take_along_axis(content.keys, content.queried, axis=1)
    tokens[:, task.context + 1 :: 2] = answers[:, :-1]
    return Prompts(tokens, answers, np.take_along_axis(key_at, content.queried, axis=1))


def training_batch(task: TaskConfig, batch: int, seed: int, step: int) -> Prompts:
    """The training prompts of one step: half with prefix, half with in-sequence padding.

    A pure function of its arguments. The target's shift is uniform over all the filler that may
    stand before it, so every phase is trained equally often.
    """
    rng = np.random.default_rng([seed, step])
    content = draw_content(task, batch, rng)
    before = rng.integers(task.free + 1, size=batch)
    spread = rng.random(batch) < 0.5
    return assemble(task, content, draw_gaps(task, before, content.queried[:, -1], spread, rng))
