# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What each position of the decoder depends on, variant by variant, by changing one token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from phasejax.models.build import init_params, model_structure
from phasejax.models.config import ModelConfig
from phasejax.models.qwen3 import Qwen3

TOKENS, VOCABULARY = 26, 11
SOME = (25, 3, 14)  # output positions, in no order
SMALL = {
    "vocab_size": VOCABULARY,
    "num_layers": 1,
    "width": 16,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
    "mlp_width": 16,
    "rope_theta": 100.0,
    "tie_embeddings": False,
    "init_std": None,
    "embed_std": 1.0,
}
W8S4 = {"window": 8, "stride": 4}
COMPRESSED = {
    "w8s8": {},
    "w8s4": W8S4,
    "w8s6": {"window": 8, "stride": 6},
    "w2s2": {"window": 2},
    "w4s4": {"window": 4},
    "w12s12": {"window": 12},
    "uniform": {"gate": "uniform"},
    "vector": {"gate": "vector"},
    "no_bias": {"gate_bias": False},
    "tied": {"tie_kv": True},
    "post_norm": {"post_norm": True},
    "uniform_tied_post_norm": {"gate": "uniform", "tie_kv": True, "post_norm": True},
    "no_qk_norm": {"qk_norm": False},
    "rope_partial": {"rope_fraction": 0.125},
    "no_rope": {"rope_fraction": 0.0},
    "stride_start": W8S4 | {"rotary_anchor": "stride_start"},
    "smallest_local_window": {"local_window": 7},
    "tail": {"exact_tokens": "tail"},
    "tail_overlap": W8S4 | {"exact_tokens": "tail"},
    "2kv": {"num_kv_heads": 2},
    "4kv": {"num_heads": 4, "num_kv_heads": 4},
    "sink": {"sink": True},
    "deepseek": W8S4 | {"gate": "vector", "tie_kv": True, "rope_fraction": 0.125},
    "v41": {"window": 2, "gate": "vector", "gate_bias": False, "tie_kv": True}
    | {"rope_fraction": 0.125},
}
FULL = {
    "full": {},
    "full_sink_2kv": {"sink": True, "num_kv_heads": 2},
    "full_no_qk_norm": {"qk_norm": False},
    "full_no_rope": {"rope_fraction": 0.0},
    "full_tied_embeddings": {"tie_embeddings": True, "num_layers": 2},
}
VARIANTS = {name: {"attention": "compressed"} | changes for name, changes in COMPRESSED.items()}
VARIANTS |= FULL
VARIANTS["two_layers"] = VARIANTS["w8s4"] | {"num_layers": 2}
VARIANTS["two_layers_tail"] = VARIANTS["tail"] | {"num_layers": 2}
every_variant = pytest.mark.parametrize("name", VARIANTS)

# Batched products differ in the last bits from row to row; what a token moves is far larger.
SAME, MOVED = 2e-5, 1e-4


def config_of(name: str) -> ModelConfig:
    return ModelConfig(**SMALL | VARIANTS[name])


def random_params(config: ModelConfig) -> nnx.State:
    """Parameters without compiling their draws; zero biases and unit gains would hide errors."""
    rng = np.random.default_rng(1)
    model = nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0)))

    def draw(x):
        if x.ndim == 1:  # gains and sinks
            return jnp.asarray(rng.uniform(0.5, 1.5, x.shape), x.dtype)
        deviation = 1.0 if VOCABULARY in x.shape else x.shape[-2] ** -0.5
        return jnp.asarray(deviation * rng.normal(size=x.shape), x.dtype)

    return jax.tree.map(draw, nnx.state(model, nnx.Param))


@functools.cache
def compiled(name: str, wanted: tuple[int, ...] | None = None):
    """Random parameters, and the jitted (params, tokens) -> logits, everywhere or where wanted."""
    config = config_of(name)
    graph = model_structure(config)
    positions = None if wanted is None else jnp.asarray(wanted)
    run = jax.jit(lambda p, tokens: nnx.merge(graph, p)(tokens, output_positions=positions))
    return random_params(config), lambda p, tokens: np.asarray(run(p, jnp.asarray(tokens)))


def perturbed_batch() -> np.ndarray:
    """A prompt, then the same with another token at position 0, at 1, and so on."""
    tokens = np.tile(np.random.default_rng(0).integers(VOCABULARY, size=TOKENS), (TOKENS + 1, 1))
    tokens[np.arange(TOKENS) + 1, np.arange(TOKENS)] += 1
    return (tokens % VOCABULARY).astype(np.int32)


def movement(logits: np.ndarray) -> np.ndarray:
    """How far changing token t moves the logits at p, [t, p]."""
    return np.abs(logits[1:] - logits[:1]).max(-1)


@functools.cache
def outputs(name: str):
    params, run = compiled(name)
    return run(params, perturbed_batch())


def without_exact_part(params: nnx.State) -> nnx.State:
    """Parameters whose exact keys and values are zero: tokens act through entries alone."""

    def silence(path, x):
        names = [str(getattr(part, "key", "")) for part in path]
        is_exact = (
            names[names.index("attention") + 1] in ("key", "value")
            if "attention" in names
            else False
        )
        return jnp.zeros_like(x) if is_exact else x

    silenced = jax.tree.map_with_path(silence, params)
    changed = [
        np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (params, silenced)), strict=True)
    ]
    assert sum(changed) in (1, 2)  # key, and value unless tied
    return silenced


@every_variant
def test_a_token_moves_every_logit_from_its_position_on_and_none_before(name):
    moved = movement(outputs(name))
    is_past = np.arange(TOKENS) < np.arange(TOKENS)[:, None]
    assert moved[is_past].max() < SAME, "a logit depends on a later token"
    # Every earlier token is exact or in a visible entry: none may be lost.
    assert moved[~is_past].min() > MOVED, "a logit does not depend on an earlier token"


@pytest.mark.parametrize("name", COMPRESSED)
def test_an_entry_is_read_from_its_last_token_on(name):
    params, run = compiled(name)
    moved = movement(run(without_exact_part(params), perturbed_batch()))
    grid = config_of(name).geometry
    for token in range(TOKENS):
        ends = [e * grid.stride + grid.window - 1 for e in grid.offsets(token)]
        for position in range(TOKENS):
            reads = position == token or any(end <= position for end in ends)
            if reads:
                assert moved[token, position] > MOVED, (token, position)
            else:
                assert moved[token, position] < SAME, (token, position)


FAST = ("w8s4", "tail_overlap", "deepseek", "full_sink_2kv")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in VARIANTS]
)
def test_wanted_positions_equal_those_of_all(name):
    params, run = compiled(name, SOME)
    some = run(params, perturbed_batch())
    np.testing.assert_allclose(some, outputs(name)[:, list(SOME)], rtol=1e-4, atol=2e-5)


@every_variant
def test_prompts_of_a_batch_do_not_see_each_other(name):
    params, run = compiled(name)
    order = np.random.default_rng(2).permutation(TOKENS + 1)
    found = run(params, perturbed_batch()[order])
    np.testing.assert_allclose(found, outputs(name)[order], rtol=1e-4, atol=2e-5)


def test_a_batch_of_one_and_a_shorter_prompt():
    params, _ = compiled("w8s4")
    graph = model_structure(config_of("w8s4"))
    tokens = jnp.asarray(perturbed_batch()[:1, :13])
    found = jax.jit(lambda p, t: nnx.merge(graph, p)(t))(params, tokens)
    # What comes later does not count, so a prefix has the logits that it has in the whole prompt.
    np.testing.assert_allclose(found, outputs("w8s4")[:1, :13], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["w8s4", *(pytest.param(n, marks=pytest.mark.slow) for n in ("tail", "sink", "full"))],
)
def test_gradients_through_wanted_positions_equal_those_through_all(name):
    params, _ = compiled(name)
    graph = model_structure(config_of(name))
    weights = np.random.default_rng(3).normal(size=(2, len(SOME), VOCABULARY)).astype(np.float32)
    positions = jnp.asarray(SOME)

    def loss(params, tokens, some):
        model = nnx.merge(graph, params)
        if some:
            return jnp.sum(weights * model(tokens, output_positions=positions))
        return jnp.sum(weights * model(tokens)[:, positions])

    run = jax.jit(jax.grad(loss), static_argnums=2)
    tokens = jnp.asarray(perturbed_batch()[:2])
    found, wanted = run(params, tokens, True), run(params, tokens, False)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert all(np.any(np.asarray(x)) for x in jax.tree.leaves(found))


@pytest.mark.parametrize("name", ["deepseek", "two_layers"])
def test_gates_of_a_model(name):
    params, _ = compiled(name)
    config = config_of(name)
    graph = model_structure(config)
    found = jax.jit(lambda p, t: nnx.merge(graph, p).gates(t))(
        params, jnp.asarray(perturbed_batch()[:3])
    )
    assert len(found) == config.num_layers
    entries = config.geometry.num_entries(TOKENS)
    channels = config.head_dim if config.gate == "vector" else 1
    for branches in found:
        assert set(branches) == ({"key"} if config.tie_kv else {"key", "value"})
        for gate in branches.values():
            assert gate.shape == (3, entries, config.window, config.num_kv_heads, channels)
            np.testing.assert_allclose(np.asarray(gate).sum(2), 1, atol=1e-5)


def test_full_attention_has_no_gates():
    tokens = jnp.zeros((1, TOKENS), jnp.int32)
    with pytest.raises(ValueError, match=r"attention='full' has no gates"):
        nnx.eval_shape(lambda: Qwen3(config_of("full"), rngs=nnx.Rngs(0)).gates(tokens))


def parameters_of(config: ModelConfig) -> int:
    model = nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0)))
    return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_qwen3_has_its_published_size():
    assert parameters_of(ModelConfig()) == 596_049_920


def test_what_a_variant_costs():
    names = "full w8s8 w8s4 uniform no_bias vector tied post_norm no_qk_norm sink"
    size = {name: parameters_of(config_of(name)) for name in names.split()}
    payload = 8 * 16 * 16  # of one branch: an offset's map from 16 channels to a head of 16
    gate, bias = 8 * 16, 8
    assert size["w8s8"] == size["full"] + 2 * (payload + gate + bias)
    assert size["w8s4"] == size["w8s8"]
    assert size["uniform"] == size["full"] + 2 * payload
    assert size["no_bias"] == size["w8s8"] - 2 * bias
    assert size["vector"] == size["full"] + 2 * (payload + 16 * (gate + bias))
    assert size["tied"] == size["full"] - 16 * 16 + payload + gate + bias
    assert size["post_norm"] == size["w8s8"] + 2 * 16
    assert size["no_qk_norm"] == size["w8s8"] - 2 * 16
    assert size["sink"] == size["w8s8"] + 2


def test_parameters_are_a_function_of_configuration_and_seed():
    config = config_of("full")
    leaves = lambda seed: [np.asarray(x) for x in jax.tree.leaves(init_params(config, seed))]  # noqa: E731
    first, again, other = leaves(0), leaves(0), leaves(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    weights = [x for x in first if x.ndim == 2 and x.size == 256]
    # No two maps are drawn with one key.
    assert len(weights) > 4
    assert len({x.tobytes() for x in weights}) == len(weights)


def test_products_in_low_precision_leave_parameters_alone():
    config = ModelConfig(**SMALL | VARIANTS["w8s4"], compute_dtype="bfloat16")
    params = init_params(config, 0)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    tokens = jnp.zeros((1, TOKENS), jnp.int32)
    logits = jax.eval_shape(lambda p: nnx.merge(model_structure(config), p)(tokens), params)
    assert logits.dtype == jnp.bfloat16
