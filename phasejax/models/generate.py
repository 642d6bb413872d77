# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Continuing prompts token by token, in one compiled program."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from phasejax.models.decoder import Decoder
from phasejax.models.inputs import Padding
from phasejax.typing import Array, Float, Int, Tokens
from phasejax.validation import check_count


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

    No token ends a row: whoever knows one cuts the rows there.

    Args:
        model: any decoder of the library.
        tokens: prompts, each starting at position 0.
        max_new_tokens: tokens to add.
        lengths: real tokens of each prompt; None means all.
        padding: the side on which prompts are filled up.
        temperature: 0 takes the likeliest token; otherwise logits are divided by it and drawn from.
        key: randomness of the draws, as jax.random.key makes it.

    Raises:
        ValueError: if no token is asked for, the temperature is negative or not finite or lacks a
            key, or tokens and lengths do not fit (see the model).
    """
    check_count("max_new_tokens", max_new_tokens, 1)
    if not _is_finite(temperature) or temperature < 0:
        raise ValueError(
            f"temperature={temperature}, but it must be a finite number from 0 on: change"
            " temperature."
        )
    if temperature > 0 and not _is_key(key):
        raise ValueError(
            f"temperature={temperature} and key={key}: draws need a key, so pass"
            " key=jax.random.key(seed)."
        )
    model.check_input(tokens, None, lengths, padding)
    lengths = jnp.full(tokens.shape[0], tokens.shape[1], jnp.int32) if lengths is None else lengths
    drawn = None if key is None or temperature == 0 else (temperature, key)
    return _generate(
        model, jnp.asarray(tokens), jnp.asarray(lengths), drawn, max_new_tokens, padding
    )


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:  # what is traced, too, has no value to choose the program by
        return False


def _is_key(key: Any) -> bool:
    """Whether this is one key, of the new kind or of the old."""
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return dtype is not None and key.ndim == (0 if typed else 1)


@nnx.jit(static_argnums=(4, 5))
def _generate(
    model: Decoder,
    tokens: Tokens,
    lengths: Int[Array, "B"],
    drawn: tuple[Any, Array] | None,
    count: int,
    padding: Padding,
) -> Int[Array, "B T2"]:
    batch, width = tokens.shape

    def draw(logits: Float[Array, "B V"], step: int | Array) -> Int[Array, "B"]:
        if drawn is None:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        temperature, key = drawn
        scaled = logits.astype(jnp.float32) / temperature
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
