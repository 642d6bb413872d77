# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks of one length, with or without overlap."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Implementation, check

IMPLEMENTATIONS = ("pallas_tpu", "pallas_gpu", "xla_blocked", "reference")


def chunk_pool(
    payload: Float[Array, "B E S L D"],
    score: Float[Array, "B E S L G"] | None = None,
    bias: Float[Array, "S L G"] | None = None,
    *,
    implementation: Implementation = None,
) -> Float[Array, "B E D"]:
    """Softmax of the gate scores over each entry's rows, and the sum of payloads with them.

    E chunks of S rows, each with L lanes. The entry of a chunk pools its last lane together with
    the lane before it of the chunk before, and so on: W = L * S rows in one softmax. So L = 1 is
    W = S (arXiv:2609.36322), and L = 2 is W = 2S, of whose first entry only the second half exists
    (DeepSeek-V4's CSA, arXiv:2606.19348).

    Args:
        payload: what is pooled.
        score: G gates a row, each for D / G consecutive channels: G = D for vector gates, the
            number of heads for scalar ones; None weighs all rows that exist alike.
        bias: added to the scores of each place in a chunk and lane, or None.
        implementation: one of IMPLEMENTATIONS, several to try in order, or None for the best here.

    Returns:
        The entries, in the dtype of `payload`; gates and sums are float32 or wider.

    Raises:
        ValueError: if shapes or dtypes disagree.
        NotImplementedError: if the implementation that was asked for cannot run here.
    """
    check(payload.ndim == 5, "payload.shape", payload.shape, "it is [B, E, S, L, D]: reshape it.")
    wide = jnp.promote_types(payload.dtype, jnp.float32)
    rows, channels = payload.shape[:4], payload.shape[4]
    check(min(payload.shape[2:]) > 0, "payload.shape", payload.shape, "S, L and D are 1 at least.")
    if score is None:
        check(bias is None, "score", None, "bias is added to scores: pass both or neither.")
        score = jnp.zeros((*rows, 1), wide)
    check(score.shape[:-1] == rows, "score.shape", score.shape, f"payload makes it {(*rows, 'G')}.")
    gates = score.shape[-1]
    whole = gates > 0 and channels % gates == 0
    check(whole, "score.shape", score.shape, f"its gates divide the {channels} channels.")
    places = (*rows[2:], gates)
    if bias is None:
        bias = jnp.zeros(places, wide)
    dispatch.check_real(payload=payload, score=score, bias=bias)
    check(bias.shape == places, "bias.shape", bias.shape, f"score makes it {places}.")
    return dispatch.call("chunk_pool", IMPLEMENTATIONS, implementation, payload, score, bias)
