# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a decoder remembers of its streams, in arrays whose shapes never change."""

import dataclasses
from typing import no_type_check

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
        returnable: tokens that each stream can take back.
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
        returnable = jnp.minimum(self.returnable + count, self.max_rollback)
        return dataclasses.replace(
            self, layers=layers, length=self.length + count, returnable=returnable
        )

    def overflows(self, count: Int[Array, "B"]) -> Bool[Array, "B"]:
        """Which streams would pass the capacity with so many more tokens."""
        return self.length + count > self.capacity

    def rollback(self, count: int | Int[Array, "B"]) -> "Cache":
        """The cache before the last tokens, such as drafts that were rejected.

        Args:
            count: tokens to take back, of all streams or of each.

        Raises:
            ValueError: if that is more than can be taken back, as far as it is known while tracing.
        """
        streams = self.length.shape
        if np.shape(count) not in ((), streams):
            raise ValueError(
                f"count of shape {np.shape(count)}, but the cache has {streams[0]} streams: give"
                " one number for all of them or one for each."
            )
        if is_known(count):
            most = self.returnable if is_known(self.returnable) else self.max_rollback
            counts, most = (np.broadcast_to(np.asarray(x), streams) for x in (count, most))
            if ((counts > most) | (counts < 0)).any():
                raise ValueError(
                    f"count={counts.tolist()}, but the streams can take back {most.tolist()}"
                    f" tokens: keep a snapshot, or raise max_rollback={self.max_rollback} of"
                    " init_cache."
                )
        return _rewound(self, jnp.broadcast_to(jnp.asarray(count, jnp.int32), streams))

    def snapshot(self) -> "Cache":
        """A copy that stays whole when this cache's buffers are donated to a step."""
        return jax.tree.map(jnp.copy, self)


@jax.jit
def _rewound(cache: Cache, count: Int[Array, "B"]) -> Cache:
    return dataclasses.replace(
        cache,
        layers=[layer.rewind(count) for layer in cache.layers],
        length=cache.length - count,
        returnable=cache.returnable - count,
    )


def is_known(value: Array | int) -> bool:
    """Whether a value can be looked at: not while tracing."""
    return not isinstance(value, jax.core.Tracer)
