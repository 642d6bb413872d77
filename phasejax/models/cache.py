# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a decoder remembers of its streams, in arrays whose shapes never change."""

import dataclasses
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import numpy as np

from phasejax.compress.base import StreamState
from phasejax.typing import Array, Bool, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class Cache:
    """State of a batch of streams, each at a position of its own.

    Attributes:
        layers: state of every layer.
        length: tokens that each stream has seen.
        returnable: tokens that each stream can take back; below 0, for good, in one that took back
            more than it could.
        capacity: tokens that a stream may reach.
        max_rollback: tokens that can be taken back at most.
    """

    layers: list[StreamState]
    length: Int[Array, "B"]
    returnable: Int[Array, "B"]
    capacity: int = dataclasses.field(metadata={"static": True})
    max_rollback: int = dataclasses.field(metadata={"static": True})

    def after(self, layers: list[StreamState], count: Int[Array, "B"]) -> "Cache":
        """The cache once every stream b has seen count[b] more tokens."""
        more = jnp.minimum(self.returnable + count, self.max_rollback)
        returnable = jnp.where(self.returnable < 0, self.returnable, more)
        return dataclasses.replace(
            self, layers=layers, length=self.length + count, returnable=returnable
        )

    def fails(self, count: Int[Array, "B"]) -> Bool[Array, "B"]:
        """Which streams pass the capacity with so many more tokens, or took back too many."""
        return (self.length + count > self.capacity) | (self.returnable < 0)

    def rollback(self, count: int | Int[Array, "B"]) -> "Cache":
        """The cache before the last tokens, such as drafts that were rejected.

        Args:
            count: tokens to take back, of all streams or of each.

        Raises:
            ValueError: if that is more than can be taken back. While tracing, where it cannot be
                known, the logits of such a stream are NaN from then on.
        """
        given = count if isinstance(count, jax.Array) else np.asarray(count)
        if not jnp.issubdtype(given.dtype, jnp.integer) or given.shape not in (
            (),
            self.length.shape,
        ):
            raise ValueError(
                f"count={count!r}, but it must be a whole number, or one for each of the"
                f" {self.length.shape[0]} streams: change count."
            )
        if is_known(given):
            # While tracing it is not known what is returnable, but it is no more than max_rollback.
            most = self.returnable if is_known(self.returnable) else self.max_rollback
            counts, most = (
                np.broadcast_to(np.asarray(x), self.length.shape) for x in (given, most)
            )
            if ((counts > most) | (counts < 0)).any():
                raise ValueError(
                    f"count={counts.tolist()}, but the streams can take back {most.tolist()}"
                    f" tokens: keep a snapshot, or raise max_rollback={self.max_rollback} of"
                    " init_cache."
                )
        return _rewound(self, jnp.broadcast_to(jnp.asarray(given, jnp.int32), self.length.shape))

    def snapshot(self) -> "Cache":
        """A copy that stays whole when this cache's buffers are donated to a step."""
        return jax.tree.map(jnp.copy, self)


@jax.jit
def _rewound(cache: Cache, count: Int[Array, "B"]) -> Cache:
    return dataclasses.replace(
        cache,
        layers=[layer.rewind(count) for layer in cache.layers],
        length=cache.length - count,
        returnable=jnp.where(count < 0, -1, cache.returnable - count),
    )


def is_known(*arrays: Any) -> bool:
    """Whether values can be looked at: not while tracing."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)
