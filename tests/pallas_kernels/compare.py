# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""How close two results must be, the same for every kernel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental.pallas import tpu as pltpu

# Fraction of the largest expected value: what rounding in each dtype may do.
TOLERANCE = {"float32": 3e-6, "bfloat16": 2e-2}


def mostly_slow(names, *, fast=("xla_blocked",)):
    """Names of cases, with the mark of slow tests on all but some."""
    return [pytest.param(n, marks=() if n in fast else pytest.mark.slow) for n in names]


def assert_close(actual, expected, dtype="float32", err_msg=""):
    """Compares two trees, leaf by leaf; infinite values must agree.

    Errors are parts of a leaf's largest value, or of the tree's where the leaf is all zero.
    """
    actual, expected = (
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
        for tree in (actual, expected)
    )
    scales = [np.max(np.abs(e), initial=0, where=np.isfinite(e)) for e in expected]
    for a, e, scale in zip(actual, expected, scales, strict=True):
        scale = scale or max(scales) or 1e-30
        np.testing.assert_allclose(a, e, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=err_msg)


def in_float64(function, *args):
    """The result of a function with every real operand in float64."""
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda x: x.astype("float64") if jnp.issubdtype(x.dtype, jnp.floating) else x, args
        )
        return jax.jit(function)(*wide)


def lower_for_tpu(function, *args):
    """The module that a TPU would get; fails where Mosaic has no rule for what a kernel does."""
    return export.export(jax.jit(function), platforms=["tpu"])(*args).mlir_module()


def _races_found():
    """What the simulated TPU saw: JAX tells nobody, but keeps it beside the public reset."""
    return pltpu.reset_tpu_interpret_mode_state.__globals__["races"].races_found


def lower_for_gpu(function, *args):
    """The module that an NVIDIA GPU would get; fails where Triton has no rule for what it does."""
    unchecked = [export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
    exported = export.export(jax.jit(function), platforms=["cuda"], disabled_checks=unchecked)
    return exported(*args).mlir_module()


def strictly(function, *args):
    """The result on a simulated TPU with NaN in all memory not yet written, free of races."""
    pltpu.reset_tpu_interpret_mode_state()
    strict = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    result = jax.block_until_ready(jax.jit(functools.partial(function, interpret=strict))(*args))
    assert not _races_found()
    return result
