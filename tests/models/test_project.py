# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Projections in runs of rows have the gradients of one plain product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from phasejax.models.config import ModelConfig
from phasejax.models.layers import Linear, project_together, weight_init
from phasejax.models.project import RUN_LENGTH, project


@pytest.mark.parametrize(
    "shape", [(RUN_LENGTH,), (4, RUN_LENGTH // 2), (3, 2 * RUN_LENGTH), (3, 50), (1, 1), (129,)]
)
def test_gradients_equal_those_of_a_matrix_product(shape):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(*shape, 5)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
    above = jnp.asarray(rng.normal(size=(*shape, 3)), jnp.float32)
    out, backward = jax.vjp(jax.jit(project), x, weight)
    grad_x, grad_weight = backward(above)
    x64, weight64, above64 = (np.asarray(a, np.float64) for a in (x, weight, above))
    rows, above_rows = x64.reshape(-1, 5), above64.reshape(-1, 3)
    np.testing.assert_allclose(out, x64 @ weight64, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grad_x, above64 @ weight64.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grad_weight, rows.T @ above_rows, rtol=1e-4, atol=1e-4)


def test_together_equals_one_by_one():
    config = ModelConfig(width=6, init_std=None)
    rngs = nnx.Rngs(0)
    layers = [Linear(config, 6, outputs, rngs=rngs) for outputs in (4, 1, 3)]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 6)), jnp.float32)
    for found, layer in zip(project_together(x, *layers), layers, strict=True):
        np.testing.assert_allclose(found, x @ layer.kernel[...], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("init_std", "wanted"), [(None, 0.1), (0.02, 0.02)])
def test_deviation_of_fresh_weights(init_std, wanted):
    config = ModelConfig(init_std=init_std)
    weights = weight_init(config, 100)(jax.random.key(0), (100, 400), jnp.float32)
    np.testing.assert_allclose(np.std(weights), wanted, rtol=0.03)
