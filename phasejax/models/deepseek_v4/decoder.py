# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The DeepSeek-V4 decoder (arXiv:2606.19348), without multi-token prediction."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx

from phasejax.models.deepseek_v4.attention import Attention, LayerState, Shared
from phasejax.models.deepseek_v4.cache import Cache, is_known
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.hyper_connections import (
    HyperConnection,
    StreamHead,
    Streams,
    merge,
)
from phasejax.models.deepseek_v4.layers import Keys, Linear, RMSNorm, Rngs, normal
from phasejax.models.deepseek_v4.moe import MixtureOfExperts
from phasejax.typing import Array, Float, Int, Tokens


class Block(nnx.Module):
    """Attention and experts, each between hyper-connections."""

    def __init__(self, config: DeepseekV4Config, layer: int, *, rngs: Rngs):
        self.attention_streams = HyperConnection(config, rngs=rngs)
        self.attention_norm = RMSNorm(config, config.width)
        self.attention = Attention(config, layer, rngs=rngs)
        self.moe_streams = HyperConnection(config, rngs=rngs)
        self.moe_norm = RMSNorm(config, config.width)
        self.moe = MixtureOfExperts(config, layer, rngs=rngs)

    def __call__(
        self,
        streams: Streams,
        tokens: Tokens,
        position: Int[Array, "#B T"],
        shared: Shared,
        state: LayerState | None = None,
        count: Int[Array, "B"] | None = None,
    ) -> tuple[Streams, Shared, LayerState | None]:
        """See Attention; the residual streams take the place of its input and output."""
        read, write, mixing = self.attention_streams(streams)
        output, shared, state = self.attention(
            self.attention_norm(read), position, shared, state, count
        )
        streams = merge(streams, output, write, mixing)
        read, write, mixing = self.moe_streams(streams)
        output = self.moe(self.moe_norm(read), tokens)
        return merge(streams, output, write, mixing), shared, state


class DeepseekV4(nnx.Module):
    """Decoder-only language model.

    Args:
        config: what it is made of.
        rngs: parameter keys.
    """

    def __init__(self, config: DeepseekV4Config, *, rngs: nnx.Rngs):
        self.config = config
        keys = Keys(rngs.params())
        self.embed = normal(config, (config.vocab_size, config.width), keys)
        self.blocks = nnx.List(
            [Block(config, layer, rngs=keys) for layer in range(config.num_layers)]
        )
        self.collapse = StreamHead(config, rngs=keys)
        self.norm = RMSNorm(config, config.width)
        self.head = Linear(config, config.width, config.vocab_size, exact=True, rngs=keys)

    def __call__(
        self,
        tokens: Tokens,
        *,
        cache: Cache | None = None,
        lengths: Int[Array, "..."] | None = None,
        padding: Literal["left", "right"] = "right",
    ) -> Float[Array, "B T V"] | tuple[Float[Array, "B T V"], Cache]:
        """Next-token logits at every position, float32.

        Args:
            tokens: whole prompts, or with a cache the next tokens of its streams.
            cache: what the streams have seen; each goes on at its own position.
            lengths: real tokens of each row; None means all. Logits of padding mean nothing.
            padding: the side on which rows are filled up.

        Returns:
            The logits, and with a cache the one after these tokens. While tracing, where a full
            cache cannot be refused, the logits of a stream that passed its capacity are NaN.

        Raises:
            ValueError: if there are no tokens, lengths do not fit them, or a stream would pass the
                cache's capacity.
        """
        self.check_input(tokens, cache, lengths)
        batch, count = tokens.shape
        lengths = jnp.full(batch, count, jnp.int32) if lengths is None else lengths
        shift = count - lengths if padding == "left" else jnp.zeros_like(lengths)
        tokens = _roll_rows(tokens, shift)
        position = jnp.arange(count, dtype=jnp.int32)[None]
        if cache is not None:
            position = position + cache.length[:, None]
        embedded = self.embed[...][tokens].astype(self.config.compute_dtype)
        streams, shared = jnp.repeat(embedded[:, :, None], self.config.streams, axis=2), Shared()
        states = []
        for layer, block in enumerate(self.blocks):
            before = None if cache is None else cache.layers[layer]
            streams, shared, state = block(streams, tokens, position, shared, before, lengths)
            if state is not None:
                states.append(state)
        logits = _roll_rows(self.head(self.norm(self.collapse(streams))), -shift)
        if cache is None:
            return logits
        logits = jnp.where(cache.overflows(lengths)[:, None, None], jnp.nan, logits)
        return logits, cache.after(states, lengths)

    @staticmethod
    def check_input(tokens: Tokens, cache: Cache | None, lengths: Int[Array, "..."] | None) -> None:
        """Refuses what a call would refuse, and computes nothing."""
        batch, count = tokens.shape
        if count == 0:
            raise ValueError(f"tokens of shape {tokens.shape} hold no token: give at least one.")
        if lengths is not None and lengths.shape != (batch,):
            raise ValueError(
                f"lengths of shape {lengths.shape} for tokens of shape {tokens.shape}: give one"
                " length for each row."
            )
        if lengths is not None and is_known(lengths):
            if bool(jnp.any((lengths < 0) | (lengths > count))):
                raise ValueError(
                    f"lengths={np.asarray(lengths).tolist()}, but rows hold {count} tokens: choose"
                    f" lengths in 0..{count}."
                )
            if cache is None and bool(jnp.any(lengths == 0)):
                raise ValueError(
                    f"lengths={np.asarray(lengths).tolist()}: a prompt has at least one token."
                )
        if cache is None:
            return
        if cache.length.shape != (batch,):
            raise ValueError(
                f"tokens has {batch} rows, but the cache has {cache.length.shape[0]} streams: make"
                " both the same."
            )
        counts = jnp.full(batch, count, jnp.int32) if lengths is None else lengths
        if is_known(cache.length, counts) and bool(jnp.any(cache.overflows(counts))):
            raise ValueError(
                f"Streams of {np.asarray(cache.length).tolist()} tokens take"
                f" {np.asarray(counts).tolist()} more, past the cache's"
                f" max_length={cache.capacity}: make a larger cache."
            )

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
        layers = [
            block.attention.init_state(batch, max_length, max_rollback) for block in self.blocks
        ]
        # Two arrays, because a step that donates the cache may not be given one buffer twice.
        length, returnable = (jnp.zeros(batch, jnp.int32) for _ in range(2))
        return Cache(layers, length, returnable, max_length, max_rollback)


def _roll_rows(x: Array, shift: Int[Array, "B"]) -> Array:
    """Moves every row b to the left by shift[b] places, around the end."""
    place = (jnp.arange(x.shape[1]) + shift[:, None]) % x.shape[1]
    return jnp.take_along_axis(x, place.reshape(*place.shape, *(1,) * (x.ndim - 2)), axis=1)
