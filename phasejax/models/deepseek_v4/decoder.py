# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The DeepSeek-V4 decoder (arXiv:2606.19348), without multi-token prediction."""

import jax.numpy as jnp
from flax import nnx

from phasejax.models.deepseek_v4.attention import Attention, LayerState, Shared
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

    def __call__(self, tokens: Tokens) -> Float[Array, "B T V"]:
        """Next-token logits at every position, float32.

        Args:
            tokens: prompts, each starting at position 0; what stands to the right of a prompt's
                last token changes nothing before it.

        Raises:
            ValueError: if the prompts are empty.
        """
        if tokens.shape[1] == 0:
            raise ValueError(f"tokens of shape {tokens.shape} hold no token: give at least one.")
        streams, shared = self._streams(tokens), Shared()
        position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        for block in self.blocks:
            streams, shared, _ = block(streams, tokens, position, shared)
        return self.head(self.norm(self.collapse(streams)))

    def _streams(self, tokens: Tokens) -> Streams:
        """Every stream starts as the embedding."""
        embedded = self.embed[...][tokens].astype(self.config.compute_dtype)
        return jnp.repeat(embedded[:, :, None], self.config.streams, axis=2)
