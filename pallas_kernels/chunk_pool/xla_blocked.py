# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks in plain JAX: lanes stay where they are, and sums over them are shifted.

Nothing as large as the windows is gathered or kept: the backward pass makes the gates again from
scores and one logsumexp an entry and gate. One gate for several channels multiplies them without
being repeated.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def _shift(x: Float[Array, "B F *D"], steps: int, fill: float = 0) -> Float[Array, "B E *D"]:
    """What chunks give to the entries that are `steps` further on."""
    widths = [(0, 0), (steps, 0)] + [(0, 0)] * (x.ndim - 2)
    return jnp.pad(x, widths, constant_values=fill)


def _by_gate(x: Float[Array, "*B D"], gates: int) -> Float[Array, "*B G C"]:
    return x.reshape(*x.shape[:-1], gates, x.shape[-1] // gates)


def _lanes(payload, score, bias):
    """Of each lane: how many entries on it gives, payload by gate, and score with bias, in float32.

    Without the last chunks, whose entries would lie after the end.
    """
    entries, _, lanes, gates = score.shape[1:]
    wide = jnp.promote_types(payload.dtype, jnp.float32)
    for lane in range(lanes):
        ahead = min(lanes - 1 - lane, entries)
        values = _by_gate(payload[:, : entries - ahead, :, lane].astype(wide), gates)
        biased = score[:, : entries - ahead, :, lane].astype(wide) + bias[
            None, None, :, lane
        ].astype(wide)
        yield ahead, values, biased


def _forward(payload, score, bias):
    lanes = list(_lanes(payload, score, bias))
    tops = [_shift(biased.max(2), ahead, -jnp.inf) for ahead, _, biased in lanes]
    top = jnp.max(jnp.stack(tops), axis=0)
    total, mixed = jnp.zeros_like(top), jnp.zeros((), top.dtype)
    for ahead, values, biased in lanes:
        weight = jnp.exp(biased - top[:, ahead:][:, :, None])
        total += _shift(weight.sum(2), ahead)
        mixed += _shift(jnp.sum(weight[..., None] * values, axis=2), ahead)
    pooled = (mixed / total[..., None]).reshape(*top.shape[:2], payload.shape[-1])
    pooled = pooled.astype(payload.dtype)
    return pooled, (payload, score, bias, pooled, top + jnp.log(total))


def _backward(kept, cotangent):
    payload, score, bias, pooled, lse = kept
    gates = score.shape[-1]
    cotangent, pooled = (_by_gate(x.astype(lse.dtype), gates) for x in (cotangent, pooled))
    d_payload, d_score, d_bias = [], [], []
    for ahead, values, biased in _lanes(payload, score, bias):
        weight = jnp.exp(biased - lse[:, ahead:][:, :, None])
        pulled = weight[..., None] * cotangent[:, ahead:][:, :, None]
        by_score = jnp.sum(pulled * (values - pooled[:, ahead:][:, :, None]), axis=-1)
        unread = [(0, 0), (0, ahead), (0, 0), (0, 0)]
        d_payload.append(jnp.pad(pulled.reshape(*pulled.shape[:3], payload.shape[-1]), unread))
        d_score.append(jnp.pad(by_score, unread))
        d_bias.append(by_score.sum((0, 1)))
    return (
        jnp.stack(d_payload, axis=3).astype(payload.dtype),
        jnp.stack(d_score, axis=3).astype(score.dtype),
        jnp.stack(d_bias, axis=1).astype(bias.dtype),
    )


@jax.custom_vjp
def chunk_pool(
    payload: Float[Array, "B E S L D"],
    score: Float[Array, "B E S L G"],
    bias: Float[Array, "S L G"],
) -> Float[Array, "B E D"]:
    """See `api.chunk_pool`."""
    return _forward(payload, score, bias)[0]


chunk_pool.defvjp(_forward, _backward)
