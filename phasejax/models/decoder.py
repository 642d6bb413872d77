# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What every decoder does with prompts and with the next tokens of streams."""

import abc
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from flax import nnx

from phasejax.models.cache import Cache, is_known
from phasejax.typing import Array, Int, Logits, Tokens

Padding = Literal["left", "right"]


class Decoder(nnx.Module, abc.ABC):
    """A language model that reads whole prompts, or streams of which it keeps a cache.

    Streams equal whole prompts: however their tokens are cut into calls, the logits are those of
    one call over all of them, up to the rounding of sums that are added in another order.
    """

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
            The logits, and with a cache the one after these tokens. While tracing, where a full
            cache cannot be refused, the logits of a stream that passed its capacity are NaN.

        Raises:
            ValueError: if there are no tokens, lengths or the cache do not fit them, `padding` is
                no side, or a stream would pass the cache's capacity.
        """
        check_input(tokens, cache, lengths, padding)
        batch, width = tokens.shape
        count = jnp.full(batch, width, jnp.int32) if lengths is None else lengths
        shift = None if lengths is None or padding == "right" else width - lengths
        if shift is not None:
            tokens = _roll_rows(tokens, shift)
        position = jnp.arange(width, dtype=jnp.int32)[None]
        if cache is not None:
            position = position + cache.length[:, None]
        states = None if cache is None else cache.layers
        logits, states = self.forward(tokens, position, states, count)
        if shift is not None:
            logits = _roll_rows(logits, -shift)
        if cache is None:
            return logits
        logits = jnp.where(cache.overflows(count)[:, None, None], jnp.nan, logits)
        return logits, cache.after(states, count)

    def init_cache(self, batch: int, max_length: int, *, max_rollback: int = 16) -> Cache:
        """The cache of streams that have seen no token.

        Args:
            batch: B.
            max_length: tokens that a stream may reach.
            max_rollback: how many can be taken back at once.

        Raises:
            ValueError: if there is no stream, or no place for a token.
        """
        for name, value, low in (
            ("batch", batch, 1),
            ("max_length", max_length, 1),
            ("max_rollback", max_rollback, 0),
        ):
            if value < low:
                raise ValueError(f"{name}={value}, but it must be at least {low}: raise {name}.")
        layers = self.init_states(batch, max_length, max_rollback)
        # Two arrays, because a step that donates the cache may not be given one buffer twice.
        length, returnable = (jnp.zeros(batch, jnp.int32) for _ in range(2))
        return Cache(layers, length, returnable, max_length, max_rollback)


def check_input(
    tokens: Tokens, cache: Cache | None, lengths: Int[Array, "..."] | None, padding: Padding
) -> None:
    """Refuses what a call of a decoder would refuse, and computes nothing.

    Raises:
        ValueError: see Decoder.
    """
    if padding not in get_args(Padding):
        raise ValueError(
            f"padding={padding!r}, but rows are filled up on the 'left' or on the 'right': choose"
            " one of them."
        )
    if tokens.ndim != 2:
        raise ValueError(f"tokens of shape {tokens.shape}, but they are [B, T]: reshape them.")
    batch, width = tokens.shape
    if tokens.size == 0:
        raise ValueError(f"tokens of shape {tokens.shape} hold no token: give at least one.")
    for name, whole in (("tokens", tokens), ("lengths", lengths)):
        if whole is not None and not jnp.issubdtype(whole.dtype, jnp.integer):
            raise ValueError(f"{name} are {whole.dtype}, but they are whole numbers: cast them.")
    if lengths is not None and lengths.shape != (batch,):
        raise ValueError(
            f"lengths of shape {lengths.shape} for tokens of shape {tokens.shape}: give one length"
            " for each row."
        )
    if lengths is not None and is_known(lengths):
        known = np.asarray(lengths)
        if ((known < 0) | (known > width)).any():
            raise ValueError(
                f"lengths={known.tolist()}, but rows hold {width} tokens: choose lengths in"
                f" 0..{width}."
            )
        if cache is None and (known == 0).any():
            raise ValueError(f"lengths={known.tolist()}: a prompt has at least one token.")
    if cache is None:
        return
    if cache.length.shape != (batch,):
        raise ValueError(
            f"tokens has {batch} rows, but the cache has {cache.length.shape[0]} streams: make both"
            " the same."
        )
    if lengths is None or is_known(lengths):
        # While tracing it is not known what the streams have seen, but it is not less than nothing.
        seen = np.asarray(cache.length) if is_known(cache.length) else np.zeros(batch, int)
        more = np.full(batch, width) if lengths is None else np.asarray(lengths)
        if (seen + more > cache.capacity).any():
            raise ValueError(
                f"Streams of {seen.tolist()} tokens take {more.tolist()} more, past the cache's"
                f" max_length={cache.capacity}: make a larger cache."
            )


def _roll_rows(x: Array, shift: Int[Array, "B"]) -> Array:
    """Moves every row b to the left by shift[b] places, around the end."""
    place = (jnp.arange(x.shape[1]) + shift[:, None]) % x.shape[1]
    return jnp.take_along_axis(x, place.reshape(*place.shape, *(1,) * (x.ndim - 2)), axis=1)
