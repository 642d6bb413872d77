# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Finished keys and values of all that a stream may reach, in arrays whose shapes never change."""

import dataclasses
from typing import no_type_check

import jax
import jax.numpy as jnp

from pallas_kernels.masks import NEVER
from phasejax.typing import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class Store:
    """Entries in the order in which they were completed; of full attention, the tokens themselves.

    Attributes:
        key: finished keys.
        value: values, or None where keys serve as values.
        end: last token of each entry, NEVER where there is none.
    """

    key: Float[Array, "B E K H"]
    value: Float[Array, "B E K H"] | None
    end: Int[Array, "B E"]

    def extend(
        self,
        key: Float[Array, "B E2 K H"],
        value: Float[Array, "B E2 K H"] | None,
        end: Int[Array, "B E2"],
        valid: Bool[Array, "B E2"],
        length: Int[Array, "B"],
    ) -> "Store":
        """Adds the valid entries after those of the first length[b] tokens of every stream b.

        Stored entries that end later are of tokens that were taken back: they are forgotten.
        """
        kept = self.end < length[:, None]
        place = jnp.sum(kept, axis=1, dtype=jnp.int32)[:, None] + jnp.cumsum(valid, axis=1) - 1
        # An index that is out of range is dropped; a negative one would count from the end.
        place = jnp.where(valid, place, self.end.shape[1])
        rows = jnp.arange(len(length))[:, None]

        def put(old: Array, new: Array) -> Array:
            return old.at[rows, place].set(new.astype(old.dtype), mode="drop")

        return Store(
            put(self.key, key),
            None if self.value is None or value is None else put(self.value, value),
            put(jnp.where(kept, self.end, NEVER), end),
        )


def empty_store(shape: tuple[int, int, int, int], dtype: jnp.dtype, *, tied: bool) -> Store:
    """A store without entries; shape is [B, E, K, H]."""
    key = jnp.zeros(shape, dtype)
    return Store(key, None if tied else jnp.zeros(shape, dtype), jnp.full(shape[:2], NEVER))
