# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Static chunked compression: a learned gate over a fixed grid of windows.

The paper's compressor (section "Compressor").

For the hidden state h[j, i] at offset i of window j, each offset with its own parameters:

    s[j, i]  = Z_i h[j, i] + b_i
    a[j, i]  = softmax over the W offsets of s[j, .]
    entry[j] = sum_i a[j, i] * (C_i h[j, i])

Keys and values have gates and payload maps of their own. A scalar gate is one number for each KV
head and offset, a vector gate one for each channel, a uniform gate the constant 1/W.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pallas_kernels.chunk_pool.api import chunk_pool
from phasejax.compress.base import Compressor, Entries
from phasejax.compress.geometry import WindowGeometry
from phasejax.compress.history import extend, recall, rewind
from phasejax.typing import Array, Bool, Float, Hidden, Int, Windows

Gate = Literal["scalar", "vector", "uniform"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class RecentTokens:
    """The tokens that unfinished windows can reach, and how many each stream has seen."""

    recent: Float[Array, "B L D"]
    length: Int[Array, "B"]

    def rewind(self, count: Int[Array, "B"]) -> "RecentTokens":
        """The state before the last count[b] tokens of every stream."""
        return RecentTokens(rewind(self.recent, count), self.length - count)


class OffsetPool(nnx.Module):
    """Parameters of one branch (keys or values): per-offset gates and payload maps; see `pool`.

    Args:
        geometry: the grid of windows.
        width: D, channels of the hidden states.
        num_kv_heads: K.
        head_dim: H.
        gate: how much each offset counts, see the module's docstring.
        gate_bias: whether the offsets have biases b_i.
        post_norm: whether each payload is RMS-normalised per head before it is averaged.
        norm_eps: epsilon of that norm.
        kernel_init: initializer of the payload maps and gate maps.
        dtype: dtype of the payload products; gates are always float32.
        param_dtype: dtype of the parameters.
        rngs: parameter keys.
    """

    def __init__(
        self,
        geometry: WindowGeometry,
        width: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        gate: Gate,
        gate_bias: bool,
        post_norm: bool,
        norm_eps: float,
        kernel_init: nnx.Initializer,
        dtype: jnp.dtype,
        param_dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.gate = gate
        self.dtype = dtype
        self.shape = (num_kv_heads, head_dim)
        offsets, channels = geometry.window, num_kv_heads * head_dim
        self.payload = nnx.Param(
            kernel_init(rngs.params(), (offsets, width, channels), param_dtype)
        )
        scores = {"scalar": num_kv_heads, "vector": channels, "uniform": 0}[gate]
        self.gate_map = (
            nnx.Param(kernel_init(rngs.params(), (offsets, width, scores), param_dtype))
            if scores
            else None
        )
        self.gate_bias = (
            nnx.Param(jnp.zeros((offsets, scores), param_dtype)) if scores and gate_bias else None
        )
        self.post_norm = (
            nnx.RMSNorm(head_dim, epsilon=norm_eps, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
            if post_norm
            else None
        )

    def gates(self, windows: Windows) -> Float[Array, "B E W K C"]:
        """Weights over the W offsets, float32; C is H for vector gates, otherwise 1."""
        batch, entries, offsets, _ = windows.shape
        heads, head_dim = self.shape
        scores = _scores(windows, [self])
        if scores is None:
            return jnp.full((batch, entries, offsets, heads, 1), 1 / offsets, jnp.float32)
        if self.gate_bias is not None:
            scores = scores + self.gate_bias[...].astype(jnp.float32)[None, None]
        channels = head_dim if self.gate == "vector" else 1
        return jax.nn.softmax(scores, axis=2).reshape(batch, entries, offsets, heads, channels)


def _side_by_side(arrays: Iterable[Array | nnx.Param], dtype: jnp.dtype) -> Array:
    return jnp.concatenate([array[...].astype(dtype) for array in arrays], axis=-1)


def _scores(windows: Windows, branches: Sequence[OffsetPool]) -> Float[Array, "B E W C"] | None:
    """Scores of the offsets without their biases, float32; None if they count alike."""
    maps = [branch.gate_map for branch in branches if branch.gate_map is not None]
    if not maps:
        return None
    return jnp.einsum(
        "bewd,wdc->bewc",
        windows.astype(jnp.float32),
        _side_by_side(maps, jnp.dtype(jnp.float32)),
        precision=jax.lax.Precision.HIGHEST,
    )


def pool(windows: Windows, branches: Sequence[OffsetPool]) -> list[Float[Array, "B E K H"]]:
    """Entries of branches of one kind, which differ in parameters alone.

    Their maps stand side by side in one product, which reads the windows once, and their heads in
    one softmax and one average.
    """
    dtype, shape = branches[0].dtype, (*windows.shape[:2], *branches[0].shape)
    maps = _side_by_side([branch.payload for branch in branches], dtype)
    payload = jnp.einsum("bewd,wdc->bewc", windows.astype(dtype), maps)
    norms = [branch.post_norm for branch in branches if branch.post_norm is not None]
    if norms:
        parts = [
            norm(part.reshape(*windows.shape[:3], *branches[0].shape)).reshape(part.shape)
            for norm, part in zip(norms, jnp.split(payload, len(norms), axis=-1), strict=True)
        ]
        payload = jnp.concatenate(parts, axis=-1)
    scores = _scores(windows, branches)
    biases = [branch.gate_bias for branch in branches if branch.gate_bias is not None]
    # Windows were cut already, so each is a chunk of one lane.
    pooled = chunk_pool(
        payload[:, :, :, None],
        None if scores is None else scores[:, :, :, None],
        _side_by_side(biases, biases[0].dtype)[:, None] if biases else None,
    )
    return [part.reshape(shape) for part in jnp.split(pooled, len(branches), axis=-1)]


class StaticCompressor(Compressor):
    """Pools fixed windows, overlapping or not, into entries.

    Args:
        geometry: the grid of windows.
        width: D.
        num_kv_heads: K.
        head_dim: H.
        tie_kv: whether values reuse the finished keys, so that there is no value branch.
        dtype: dtype of the payload products, and of what a stream keeps.
        rngs: parameter keys.
        **branch: see OffsetPool.
    """

    def __init__(
        self,
        geometry: WindowGeometry,
        width: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        tie_kv: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        **branch,
    ):
        self.geometry = geometry
        self.width = width
        self.dtype = dtype
        shape = (geometry, width, num_kv_heads, head_dim)
        self.key = OffsetPool(*shape, dtype=dtype, rngs=rngs, **branch)
        self.value = None if tie_kv else OffsetPool(*shape, dtype=dtype, rngs=rngs, **branch)

    def _branches(self) -> dict[str, OffsetPool]:
        return {"key": self.key} if self.value is None else {"key": self.key, "value": self.value}

    def _windows(self, hidden: Hidden) -> Windows:
        """The windows of a sequence that starts at position 0."""
        window, stride = self.geometry.window, self.geometry.stride
        entries = self.geometry.num_entries(hidden.shape[1])
        if entries == 0:
            return jnp.zeros((hidden.shape[0], 0, window, self.width), hidden.dtype)
        if window == stride:
            return hidden[:, : entries * stride].reshape(
                hidden.shape[0], entries, window, self.width
            )
        return hidden[:, self.geometry.start(entries)[:, None] + np.arange(window)]

    def _pool(
        self, windows: Windows, index: Int[Array, "*R E"], valid: Bool[Array, "*R E"]
    ) -> Entries:
        grid = self.geometry
        start = index * grid.stride
        key, *value = pool(windows, list(self._branches().values()))
        return Entries(
            key=key,
            value=value[0] if value else None,
            start=start,
            end=start + (grid.window - 1),
            position=start + int(grid.position(1)[0]),
            valid=valid,
        )

    def __call__(self, hidden: Hidden) -> Entries:
        windows = self._windows(hidden)
        index = jnp.arange(windows.shape[1], dtype=jnp.int32)
        return self._pool(windows, index, jnp.ones(index.shape, bool))

    def gates(self, hidden: Hidden) -> dict[str, Float[Array, "B E W K C"]]:
        windows = self._windows(hidden)
        return {name: branch.gates(windows) for name, branch in self._branches().items()}

    def max_entries(self, tokens: int) -> int:
        return self.geometry.num_entries(tokens)

    def init_state(self, batch: int, spare: int = 0) -> RecentTokens:
        shape = (batch, self.geometry.window - 1 + spare, self.width)
        return RecentTokens(jnp.zeros(shape, self.dtype), jnp.zeros(batch, jnp.int32))

    def append(
        self, state: RecentTokens, hidden: Hidden, count: Int[Array, "B"] | None = None
    ) -> tuple[RecentTokens, Entries]:
        window, stride = self.geometry.window, self.geometry.stride
        batch, new, _ = hidden.shape
        before = window - 1
        count = jnp.full(batch, new, jnp.int32) if count is None else count
        # Windows are read before the state moves on: the new tokens may push out what they need.
        seen = recall(state.recent, hidden, before)
        closed = jnp.maximum(0, (state.length - window) // stride + 1)
        index = closed[:, None] + jnp.arange(-(-new // stride), dtype=jnp.int32)[None]
        valid = index * stride + window <= (state.length + count)[:, None]
        first = index * stride - (state.length - before)[:, None]
        row = jnp.clip(first[..., None] + np.arange(window)[None, None], 0, before + new - 1)
        windows = jnp.take_along_axis(seen[:, None], row[..., None], axis=2)
        entries = self._pool(windows, index, valid)
        return RecentTokens(extend(state.recent, hidden, count), state.length + count), entries
