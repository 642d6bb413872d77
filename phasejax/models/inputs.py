# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a decoder is fed, looked at before anything is compiled or computed.

What is traced has no values: only its shape and dtype are looked at.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from phasejax.models.cache import Cache, is_known

Padding = Literal["left", "right"]


def check_tokens(
    tokens: Any, lengths: Any, padding: Padding, vocab_size: int, *, prompts: bool
) -> None:
    """Refuses tokens and lengths that do not fit each other or the vocabulary.

    Args:
        tokens: an integer array [B, T].
        lengths: real tokens of each row, integers [B]; None means all.
        padding: the side on which rows are filled up; what stands there may be anything.
        vocab_size: V.
        prompts: whether a row has to hold a token.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    if padding not in get_args(Padding):
        raise ValueError(
            f"padding={padding!r}, but rows are filled up on the 'left' or on the 'right': choose"
            " one of them."
        )
    _check_integers("tokens", tokens, "[batch, tokens]", 2)
    batch, width = tokens.shape
    if not batch * width:
        raise ValueError(f"tokens of shape {tokens.shape} hold no token: give at least one.")
    if lengths is not None:
        _check_integers("lengths", lengths, "[batch]", 1)
        if lengths.shape != (batch,):
            raise ValueError(
                f"lengths of shape {lengths.shape} for tokens of shape {tokens.shape}: give one"
                " length for each row."
            )
    count = _counts(tokens, lengths)
    if count is None:
        return
    if ((count < 0) | (count > width)).any():
        raise ValueError(
            f"lengths={count.tolist()}, but rows hold {width} tokens: choose lengths in 0..{width}."
        )
    if prompts and (count == 0).any():
        raise ValueError(f"lengths={count.tolist()}: a prompt has at least one token.")
    if not is_known(tokens):
        return
    place = np.arange(width)
    real = (place[::-1] if padding == "left" else place) < count[:, None]
    known = np.asarray(tokens)
    wrong = known[real & ((known < 0) | (known >= vocab_size))]
    if wrong.size:
        raise ValueError(
            f"tokens hold {wrong[0]}, but vocab_size={vocab_size}: choose tokens in"
            f" 0..{vocab_size - 1}, and tell padding by lengths."
        )


def check_cache(
    cache: Any, init_states: Callable[[int, int, int], list[Any]], tokens: Any, lengths: Any
) -> None:
    """Refuses a cache that these tokens cannot go on from.

    Args:
        cache: of the streams.
        init_states: of the model, see Decoder.
        tokens: the next tokens, as `check_tokens` lets them pass.
        lengths: how many of them are real.

    Raises:
        ValueError: if it is of another model or batch, or a stream would pass its capacity.
    """
    if not isinstance(cache, Cache):
        raise ValueError(
            f"cache is a {type(cache).__name__}, but it must be what init_cache or a call of the"
            " model returned: logits, cache = model(tokens, cache=cache)."
        )
    batch = tokens.shape[0]
    if cache.length.shape != (batch,):
        raise ValueError(
            f"tokens has {batch} rows, but the cache has {cache.length.shape[0]} streams: make both"
            " the same."
        )
    own = jax.eval_shape(lambda: init_states(batch, cache.capacity, cache.max_rollback))
    if _kinds(own) != _kinds(cache.layers):
        raise ValueError(
            "cache holds other layers, shapes or dtypes than this model's: another model made it,"
            " so make one by this model's init_cache."
        )
    count = _counts(tokens, lengths)
    if count is not None:
        # While tracing it is not known what the streams have seen, but it is not less than nothing.
        seen = np.asarray(cache.length) if is_known(cache.length) else np.zeros(batch, int)
        if (seen + count > cache.capacity).any():
            raise ValueError(
                f"Streams of {seen.tolist()} tokens take {count.tolist()} more, past the cache's"
                f" max_length={cache.capacity}: make a larger cache."
            )


def _counts(tokens: Any, lengths: Any) -> np.ndarray | None:
    """Real tokens of each row; None where that is not known."""
    if lengths is None:
        return np.full(tokens.shape[0], tokens.shape[1])
    return np.asarray(lengths).astype(int) if is_known(lengths) else None


def _check_integers(name: str, value: Any, shape: str, ndim: int) -> None:
    dtype = getattr(value, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or value.ndim != ndim:
        what = type(value).__name__ if dtype is None else f"{dtype}{list(value.shape)}"
        raise ValueError(
            f"{name} is {what}, but must be an array of integers {shape}: pass"
            f" jnp.asarray({name}, jnp.int32) of that shape."
        )


def _kinds(states: list[Any]) -> tuple[Any, list[Any]]:
    """What has to agree of two models' states."""
    leaves, structure = jax.tree.flatten(states)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
