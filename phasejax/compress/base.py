# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract that every compressor keeps: how a sequence becomes cache entries.

| question                             | answer                                            |
|--------------------------------------|---------------------------------------------------|
| which tokens feed entry e?           | start[e] .. end[e], inclusive                     |
| when may a query at p see it?        | when end[e] <= p, never earlier                   |
| where does RoPE place it?            | position[e]                                       |
| is the slot real?                    | valid[e]: padded slots are masked, never averaged |
| how much did each offset count?      | gates(hidden), for analysis                       |
| how does it stream?                  | init_state, append: equal to the one-shot call    |
| how many entries can there be?       | max_entries(tokens): what a cache has room for    |

A stream's state is a tree of arrays whose shapes never change, and every stream of a batch stands
at a position of its own. An entry that was closed by tokens which were taken back is made again:
readers drop those that end at or after the next token.
"""

import abc
import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
from flax import nnx

from phasejax.typing import Array, Bool, Float, Hidden, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Entries:
    """Compressed keys and values before normalisation and rotation.

    The last four are [E], or [B, E] where streams stand at different positions.

    Attributes:
        key: compressed keys.
        value: compressed values, or None where values reuse the finished keys.
        start: first token of each entry.
        end: last token of each entry, inclusive.
        position: rotary position of each entry.
        valid: whether the slot holds an entry.
    """

    key: Float[Array, "B E K H"]
    value: Float[Array, "B E K H"] | None
    start: Int[Array, "*R E"]
    end: Int[Array, "*R E"]
    position: Int[Array, "*R E"]
    valid: Bool[Array, "*R E"]


@runtime_checkable
class StreamState(Protocol):
    """What is remembered of streams, by a compressor or a layer: a tree of arrays."""

    def rewind(self, count: Int[Array, "B"]) -> "StreamState":
        """The state before the last count[b] tokens of every stream b."""
        ...


class Compressor(nnx.Module, abc.ABC):
    """Turns hidden states into entries; attention reads nothing else of a compressor."""

    @abc.abstractmethod
    def __call__(self, hidden: Hidden) -> Entries:
        """All entries that are complete within the sequence."""

    @abc.abstractmethod
    def gates(self, hidden: Hidden) -> dict[str, Float[Array, "..."]]:
        """Weights of the offsets, by branch ("key", "value"), float32; they sum to 1 over W."""

    @abc.abstractmethod
    def max_entries(self, tokens: int) -> int:
        """The most entries that can be complete within so many tokens."""

    @abc.abstractmethod
    def init_state(self, batch: int, spare: int = 0) -> StreamState:
        """State of streams that have seen no token.

        Args:
            batch: B.
            spare: tokens that can be taken back by StreamState.rewind.
        """

    @abc.abstractmethod
    def append(
        self, state: Any, hidden: Hidden, count: Int[Array, "B"] | None = None
    ) -> tuple[Any, Entries]:
        """Takes the next tokens of every stream; returns the state and the entries they closed.

        Args:
            state: what the streams have seen, as this compressor made it.
            hidden: their next tokens.
            count: how many of the tokens are real, the first ones; None means all.

        Returns:
            The next state, and entries with indices of [B, E], ascending in every row; a slot that
            no real token closed is not valid.
        """
