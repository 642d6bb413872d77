# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What every decoder does with prompts and with the next tokens of streams."""

import abc
from typing import Any

import jax.numpy as jnp
from flax import nnx

from phasejax.models.cache import Cache
from phasejax.models.inputs import Padding, check_cache, check_tokens
from phasejax.typing import Array, Int, Logits, Tokens
from phasejax.validation import check_count


class Decoder(nnx.Module, abc.ABC):
    """A language model that reads whole prompts, or streams of which it keeps a cache.

    Streams equal whole prompts: however their tokens are cut into calls, the logits are those of
    one call over all of them, up to the rounding of sums that are added in another order.

    Attributes:
        config: what it is made of; `vocab_size` is V.
    """

    config: Any

    @abc.abstractmethod
    def forward(
        self,
        tokens: Tokens,
        position: Int[Array, "#B T"],
        states: list[Any] | None,
        count: Int[Array, "B"],
    ) -> tuple[Logits, list[Any]]:
        """Logits at every position, and the next state of every layer.

        Args:
            tokens: whole prompts, or the next tokens of streams; padding comes last.
            position: their positions, consecutive.
            states: what each layer remembers of the streams (see StreamState); None for whole
                prompts.
            count: real tokens of each row.
        """

    @abc.abstractmethod
    def init_states(self, batch: int, capacity: int, spare: int) -> list[Any]:
        """The state of every layer for streams that have seen no token.

        Args:
            batch: B.
            capacity: tokens that a stream may reach.
            spare: tokens that can be taken back.
        """

    def __call__(
        self,
        tokens: Tokens,
        *,
        cache: Cache | None = None,
        lengths: Int[Array, "..."] | None = None,
        padding: Padding = "right",
    ) -> Logits | tuple[Logits, Cache]:
        """Next-token logits at every position.

        Args:
            tokens: whole prompts, or with a cache the next tokens of its streams.
            cache: what the streams have seen; each goes on at its own position.
            lengths: real tokens of each row; None means all. Logits of padding mean nothing.
            padding: the side on which rows are filled up.

        Returns:
            The logits, and with a cache the one after these tokens. While tracing, where values
            cannot be refused, logits are NaN in rows that hold a token outside the vocabulary, and
            in streams that passed their capacity or took back more than they could.

        Raises:
            ValueError: see `check_input`.
        """
        self.check_input(tokens, cache, lengths, padding)
        batch, width = tokens.shape
        tokens = jnp.asarray(tokens, jnp.int32)
        # A negative index would count from the vocabulary's end; one past it is read as NaN.
        tokens = jnp.where(tokens < 0, self.config.vocab_size, tokens)
        count = jnp.full(batch, width) if lengths is None else jnp.asarray(lengths)
        count = count.astype(jnp.int32)
        shift = None if lengths is None or padding == "right" else width - count
        if shift is not None:
            tokens = _roll_rows(tokens, shift)
        if lengths is not None:  # what stands in padding is read by nothing
            tokens = jnp.where(jnp.arange(width) < count[:, None], tokens, 0)
        position = jnp.arange(width, dtype=jnp.int32)[None]
        if cache is not None:
            position = position + cache.length[:, None]
        states = None if cache is None else cache.layers
        logits, states = self.forward(tokens, position, states, count)
        if shift is not None:
            logits = _roll_rows(logits, -shift)
        if cache is None:
            return logits
        logits = jnp.where(cache.fails(count)[:, None, None], jnp.nan, logits)
        return logits, cache.after(states, count)

    def init_cache(self, batch: int, max_length: int, *, max_rollback: int = 16) -> Cache:
        """The cache of streams that have seen no token.

        Args:
            batch: B.
            max_length: tokens that a stream may reach.
            max_rollback: how many can be taken back at once.

        Raises:
            ValueError: for an argument that is no whole number or too small.
        """
        for name, value, low in (
            ("batch", batch, 1),
            ("max_length", max_length, 1),
            ("max_rollback", max_rollback, 0),
        ):
            check_count(name, value, low)
        layers = self.init_states(batch, max_length, max_rollback)
        # Two arrays, because a step that donates the cache may not be given one buffer twice.
        length, returnable = (jnp.zeros(batch, jnp.int32) for _ in range(2))
        return Cache(layers, length, returnable, max_length, max_rollback)

    def check_input(
        self, tokens: Any, cache: Any = None, lengths: Any = None, padding: Padding = "right"
    ) -> None:
        """Refuses what a call would refuse, and computes nothing; see there for the arguments.

        What is traced has no values, so that only its shape and dtype are looked at.

        Raises:
            ValueError: if there are no tokens, some lie outside the vocabulary, lengths do not fit
                them, padding names no side, the cache is of another model or batch, or a stream
                would pass its capacity.
        """
        check_tokens(tokens, lengths, padding, self.config.vocab_size, prompts=cache is None)
        if cache is not None:
            check_cache(cache, self.init_states, tokens, lengths)


def _roll_rows(x: Array, shift: Int[Array, "B"]) -> Array:
    """Moves every row b to the left by shift[b] places, around the end."""
    place = (jnp.arange(x.shape[1]) + shift[:, None]) % x.shape[1]
    return jnp.take_along_axis(x, place.reshape(*place.shape, *(1,) * (x.ndim - 2)), axis=1)
