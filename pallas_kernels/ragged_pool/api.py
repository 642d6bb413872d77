# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks whose length the data decides."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Implementation, check

IMPLEMENTATIONS = ("pallas_tpu", "pallas_gpu", "xla_blocked", "reference")


def ragged_pool(
    value: Float[Array, "B T D"],
    score: Float[Array, "B T #D"] | None,
    chunk: Int[Array, "B T"],
    *,
    entries: int,
    implementation: Implementation = None,
) -> Float[Array, "B E D"]:
    """Softmax of the gate scores within each chunk, and the sum of values with these weights.

    Args:
        value: what is pooled.
        score: gate scores of every channel, or [B, T, 1] for one gate a token; None weighs the
            tokens of a chunk alike. The softmax is in float32 or wider.
        chunk: which chunk each token belongs to, not decreasing along a row. Ids below 0 or from
            `entries` on are pooled nowhere: which tokens those are when there are more chunks than
            entries is the caller's choice.
        entries: slots for chunks, a static number.
        implementation: one of IMPLEMENTATIONS, several to try in order, or None for the best here.

    Returns:
        The pooled chunks in the dtype of `value`; zeros for a chunk without tokens.

    Raises:
        ValueError: if shapes or dtypes disagree, or, outside jit, if `chunk` decreases.
        NotImplementedError: if the implementation that was asked for cannot run here.
    """
    check(value.ndim == 3, "value.shape", value.shape, "it is [B, T, D]: reshape it.")
    if score is None:
        score = jnp.zeros((*value.shape[:2], 1), jnp.float32)
    dispatch.check_real(value=value, score=score)
    shapes = [(*value.shape[:2], gates) for gates in (value.shape[2], 1)]
    check(score.shape in shapes, "score.shape", score.shape, f"it is one of {shapes}.")
    rows = value.shape[:2]
    check(chunk.shape == rows, "chunk.shape", chunk.shape, f"there is one id a token: {rows}.")
    dispatch.check_whole(chunk=chunk)
    check(entries >= 1, "entries", entries, "there must be a slot at least: raise it.")
    if not isinstance(chunk, jax.core.Tracer):
        step = np.diff(np.asarray(chunk), axis=1).min(initial=0)
        check(step >= 0, "smallest step of chunk", step, "ids do not decrease: sort the tokens.")
    return dispatch.call(
        "ragged_pool", IMPLEMENTATIONS, implementation, value, score, chunk, entries=entries
    )
