# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The DeepSeek-V4 decoder (arXiv:2606.19348), without multi-token prediction."""

import jax.numpy as jnp
from flax import nnx

from phasejax.models.decoder import Decoder
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
from phasejax.typing import Array, Int, Logits, Tokens


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


class DeepseekV4(Decoder):
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

    def forward(
        self,
        tokens: Tokens,
        position: Int[Array, "#B T"],
        states: list[LayerState] | None,
        count: Int[Array, "B"],
    ) -> tuple[Logits, list[LayerState | None]]:
        """See Decoder; the logits are float32."""
        # By default, a token past the vocabulary would be read as the last one.
        embedded = self.embed[...].at[tokens].get(mode="fill", fill_value=jnp.nan)
        embedded = embedded.astype(self.config.compute_dtype)
        streams, shared = jnp.repeat(embedded[:, :, None], self.config.streams, axis=2), Shared()
        after = []
        for layer, block in enumerate(self.blocks):
            before = None if states is None else states[layer]
            streams, shared, state = block(streams, tokens, position, shared, before, count)
            after.append(state)
        return self.head(self.norm(self.collapse(streams))), after

    def init_states(self, batch: int, capacity: int, spare: int) -> list[LayerState]:
        return [block.attention.init_state(batch, capacity, spare) for block in self.blocks]
