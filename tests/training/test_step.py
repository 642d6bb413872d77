# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""One training step: microbatches, devices, the optimizer and the loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from phasejax.models.build import model_structure
from phasejax.tasks.record_lookup import training_batch
from phasejax.training.loop import initial_state, make_run_optimizer
from phasejax.training.sharding import ShardingRules, data_mesh
from phasejax.training.step import answer_loss, make_optimizer, train_step


@pytest.fixture(scope="module")
def steps(tiny):
    """Two steps on one batch: at once, by microbatches, and on eight devices."""
    config = tiny()
    graph = model_structure(config.model)
    step = functools.partial(train_step, graph=graph, optimizer=make_run_optimizer(config))
    state = initial_state(config)
    prompts = training_batch(config.task, 8, 0, 0)
    queries = jnp.asarray(config.task.query_positions)

    def run(mesh, microbatch, rules=ShardingRules()):  # noqa: B008
        sharding = rules.sharding(mesh, "accumulation", "batch", "tokens")
        batch = [
            jax.device_put(x.reshape(-1, microbatch, x.shape[1]), sharding)
            for x in (prompts.tokens, prompts.answers)
        ]
        with jax.set_mesh(mesh):
            places = jax.tree.map(functools.partial(rules.parameter, mesh), state)
            now, compiled = (
                jax.device_put(state, places),
                jax.jit(step, out_shardings=(places, None)),
            )
            found = []
            for _ in range(2):
                now, metrics = compiled(now, *batch, queries, jnp.float32(0.01))
                found.append((now, metrics))
            return jax.device_get(found)

    results = {
        "one batch": run(data_mesh(1), 8),
        "microbatches": run(data_mesh(1), 2),
        "eight devices": run(data_mesh(8), 8),
        "divided parameters": run(data_mesh(8), 8, ShardingRules(parameters="data")),
    }
    return config, graph, state, prompts, results


def test_the_tests_run_on_eight_devices():
    assert jax.device_count() == 8
    assert data_mesh(8).size == 8
    assert data_mesh(12).size == 4
    assert data_mesh(3).size == 1


@pytest.mark.parametrize("way", ["microbatches", "eight devices", "divided parameters"])
def test_how_a_batch_is_computed_does_not_matter(steps, way):
    *_, results = steps
    for (state, metrics), (wanted_state, wanted) in zip(
        results[way], results["one batch"], strict=True
    ):
        for name, value in wanted.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
        # The optimizer's moments are the gradients, clipped: parameters would hide their size.
        for leaf, wanted_leaf in zip(
            jax.tree.leaves(state.opt_state), jax.tree.leaves(wanted_state.opt_state), strict=True
        ):
            np.testing.assert_allclose(leaf, wanted_leaf, rtol=1e-4, atol=1e-7)


def test_metrics_are_those_of_the_prompts(steps):
    config, graph, state, prompts, results = steps
    model = nnx.merge(graph, state.params)
    forward = jax.jit(lambda m, t: m(t))
    logits = np.asarray(forward(model, jnp.asarray(prompts.tokens)), np.float64)
    logits = logits[:, config.task.query_positions]
    top = logits.max(-1, keepdims=True)
    log_probability = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    loss = -np.take_along_axis(log_probability, prompts.answers[..., None], axis=-1).mean()
    accuracy = (logits.argmax(-1) == prompts.answers).mean()
    _, metrics = results["one batch"][0]
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], accuracy, rtol=1e-5)
    assert metrics["grad_norm"] > 0


def test_a_step_goes_downhill(steps):
    config, graph, state, prompts, results = steps
    losses = [metrics["loss"] for _, metrics in results["one batch"]]
    assert losses[1] < losses[0]
    after = results["one batch"][0][0].params
    changed = [
        np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (state.params, after)), strict=True)
    ]
    assert all(changed), "some parameter gets no gradient"
    queries = jnp.asarray(config.task.query_positions)
    args = [jnp.asarray(x) for x in (prompts.tokens, prompts.answers)]
    found, _ = jax.jit(lambda p: answer_loss(graph, p, *args, queries))(after)
    np.testing.assert_allclose(found, losses[1], rtol=1e-5)


def test_the_optimizer_is_adamw_behind_a_clip():
    b1, b2, decay, clip = 0.8, 0.95, 0.1, 1.0
    rng = np.random.default_rng(0)
    params = {"gain": rng.normal(size=2), "matrix": rng.normal(size=(3, 2))}
    optimizer = make_optimizer(params, b1=b1, b2=b2, weight_decay=decay, clip_norm=clip)
    mean = square = {name: 0.0 for name in params}
    flat, unravel = ravel_pytree(params)
    state = optimizer.init(flat)
    update = jax.jit(optimizer.update)
    for step, scale in enumerate((10.0, 0.01), start=1):  # clipped, then not
        grads = {name: scale * rng.normal(size=x.shape) for name, x in params.items()}
        updates, state = update(ravel_pytree(grads)[0], state, flat)
        flat = flat + 0.1 * updates
        found = unravel(flat)
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        grads = {name: g * min(1, clip / norm) for name, g in grads.items()}
        mean = {n: b1 * mean[n] + (1 - b1) * g for n, g in grads.items()}
        square = {n: b2 * square[n] + (1 - b2) * g**2 for n, g in grads.items()}
        for name in params:
            move = mean[name] / (1 - b1**step) / (np.sqrt(square[name] / (1 - b2**step)) + 1e-8)
            if name == "matrix":  # gains do not decay
                move = move + decay * params[name]
            params[name] = params[name] - 0.1 * move
            np.testing.assert_allclose(found[name], params[name], rtol=1e-4, atol=1e-6)


def test_two_logical_axes_on_one_mesh_axis_are_refused():
    with pytest.raises(ValueError, match="a mesh axis can shard only one of them"):
        ShardingRules(tokens="data").sharding(data_mesh(8), "batch", "tokens")
    assert ShardingRules().sharding(data_mesh(8)).is_fully_replicated


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((16, 64), (None, "data")), ((64, 16), ("data", None)), ((12, 8), (None, "data")),
        ((7, 9), (None, None)), ((), ()), ((8,), ("data",)), ((0,), (None,)),
    ],
)  # fmt: skip
def test_parameters_are_divided_along_their_longest_axis_that_fits(shape, spec):
    leaf = jax.ShapeDtypeStruct(shape, jnp.float32)
    divided = ShardingRules(parameters="data").parameter(data_mesh(8), leaf)
    assert divided.spec == PartitionSpec(*spec)
    assert ShardingRules().parameter(data_mesh(8), leaf).is_fully_replicated
    assert ShardingRules(parameters="data").parameter(data_mesh(1), leaf).is_fully_replicated
