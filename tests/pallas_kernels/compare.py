# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""How close two results must be, the same for every kernel."""

import jax
import jax.numpy as jnp
import numpy as np

# Fraction of the largest expected value: what rounding in each dtype may do.
TOLERANCE = {"float32": 3e-6, "bfloat16": 2e-2}


def assert_close(actual, expected, dtype="float32", err_msg=""):
    """Compares two trees, leaf by leaf; infinite values must agree."""
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for a, e in zip(actual, expected, strict=True):
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        scale = np.max(np.abs(e), initial=1e-30, where=np.isfinite(e))
        np.testing.assert_allclose(a, e, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=err_msg)


def in_float64(function, *args):
    """The result of a function with every real operand in float64."""
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda x: x.astype("float64") if jnp.issubdtype(x.dtype, jnp.floating) else x, args
        )
        return jax.jit(function)(*wide)
