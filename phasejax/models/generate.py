# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Continuing prompts token by token, in one compiled program."""

import jax
import jax.numpy as jnp
from flax import nnx

from phasejax.models.decoder import Decoder, Padding, check_input
from phasejax.typing import Array, Float, Int, Tokens


def generate(
    model: Decoder,
    tokens: Tokens,
    *,
    max_new_tokens: int,
    lengths: Int[Array, "B"] | None = None,
    padding: Padding = "right",
    temperature: float = 0.0,
    key: Array | None = None,
) -> Int[Array, "B T2"]:
    """The next tokens of every prompt, int32 [B, max_new_tokens].

    Args:
        model: any decoder of the library.
        tokens: prompts, each starting at position 0.
        max_new_tokens: tokens to add.
        lengths: real tokens of each prompt; None means all.
        padding: the side on which prompts are filled up.
        temperature: 0 takes the likeliest token; otherwise logits are divided by it and drawn from.
        key: randomness of the draws.

    Raises:
        ValueError: if no token is asked for, the temperature is negative or lacks a key, `padding`
            is no side, or tokens and lengths do not fit (see the model).
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens}: ask for at least one token.")
    if temperature < 0 or (temperature > 0 and key is None):
        raise ValueError(
            f"temperature={temperature} and key={key}: draws need a temperature above 0 and a key."
        )
    check_input(tokens, None, lengths, padding)
    lengths = jnp.full(tokens.shape[0], tokens.shape[1], jnp.int32) if lengths is None else lengths
    key = jax.random.key(0) if key is None else key
    return _generate(model, tokens, lengths, temperature, key, max_new_tokens, padding)


@nnx.jit(static_argnums=(3, 5, 6))
def _generate(
    model: Decoder,
    tokens: Tokens,
    lengths: Int[Array, "B"],
    temperature: float,
    key: Array,
    count: int,
    padding: Padding,
) -> Int[Array, "B T2"]:
    batch, width = tokens.shape

    def draw(logits: Float[Array, "B V"], step: int | Array) -> Int[Array, "B"]:
        if temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        scaled = logits / temperature
        return jax.random.categorical(jax.random.fold_in(key, step), scaled).astype(jnp.int32)

    cache = model.init_cache(batch, width + count, max_rollback=0)
    logits, cache = model(tokens, cache=cache, lengths=lengths, padding=padding)
    last = jnp.full(batch, width - 1) if padding == "left" else lengths - 1
    first = draw(jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0], 0)

    def following(carry: tuple, step: Array) -> tuple[tuple, Array]:
        token, cache = carry
        logits, cache = model(token[:, None], cache=cache)
        token = draw(logits[:, 0], step)
        return (token, cache), token

    _, rest = jax.lax.scan(following, (first, cache), jnp.arange(1, count))
    return jnp.concatenate([first[:, None], rest.T], axis=1)
