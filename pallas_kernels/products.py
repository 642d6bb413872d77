# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Products in one precision on every backend."""

import jax.numpy as jnp
from jaxtyping import Array


def product(subscripts: str, *operands: Array) -> Array:
    """An einsum in float32 or wider, whatever the backend's default precision."""
    wide = jnp.promote_types(operands[0].dtype, jnp.float32)
    return jnp.einsum(subscripts, *operands, precision="highest", preferred_element_type=wide)
