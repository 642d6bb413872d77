# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder against transformers' (tests/golden/make_deepseek_v4.py), in float32.

The largest difference is stated relative to the largest logit, and is at most 1e-5; the same
argmax everywhere. Seen at most: 2.0e-6 in one call (nested_yarn), 1.6e-6 decoding (nested_yarn).
"""

import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from phasejax.checkpoints.deepseek_v4_names import tensor_name
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.decoder import DeepseekV4
from phasejax.models.deepseek_v4.presets import preset
from phasejax.models.deepseek_v4.rope import Yarn
from tests.golden import fill, filled

GOLDEN = Path(__file__).parents[2] / "golden/deepseek_v4"
TINY = dataclasses.replace(preset("deepseek_v4_tiny"), vocab_size=48, clamp_shared=True)
# Written by hand, not read from the golden config.json: the loader's reading is tested elsewhere.
CASES = {
    "every_layer": TINY,
    "no_yarn": dataclasses.replace(
        TINY,
        compress_ratios=(128, 4, 0),
        num_layers=2,
        num_hash_layers=0,
        index_topk=512,
        yarn=None,
    ),
    "nested_yarn": dataclasses.replace(
        TINY,
        compress_ratios=(4, 0),
        num_layers=2,
        rotary_dim=8,
        yarn=Yarn(original_length=64, attention_factor=0.1 * math.log(16) + 1),
    ),
    "clamped": dataclasses.replace(
        TINY,
        swiglu_limit=0.4,
        compress_ratios=(4, 4),
        num_layers=2,
        streams=2,
        sinkhorn_iterations=3,
        num_heads=6,
        output_groups=3,
        index_heads=3,
        route_scale=2.5,
    ),
}
run = nnx.jit(lambda model, tokens: model(tokens))


def golden(case: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{case}.npz") as arrays:
        return dict(arrays)


def assert_same_logits(got: jax.Array, wanted: np.ndarray) -> None:
    got = np.asarray(got)
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()
    np.testing.assert_array_equal(got.argmax(-1), wanted.argmax(-1))


def logits(config: DeepseekV4Config, length: int) -> jax.Array:
    return run(filled.model(config), jnp.asarray(fill.tokens(length, config.vocab_size)))[0]


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_packages(case):
    wanted = golden(case)["logits"]
    assert_same_logits(logits(CASES[case], len(wanted)), wanted)


@pytest.mark.parametrize(
    "length",
    [3, 4]
    + [pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 127, 128, 129, 255, 256, 257)],
)
def test_every_length(length):
    """The golden script checks that the package, too, gives these rows for shorter prompts."""
    assert_same_logits(logits(TINY, length), golden("every_layer")["logits"][:length])


@pytest.mark.parametrize("case", ["every_layer", "nested_yarn"])
def test_prefill_and_decode(case):
    """The golden script checks that the package's decoding gives these rows, too."""
    config, wanted = CASES[case], golden(case)["logits"]
    model, length = filled.model(config), len(wanted)
    tokens = jnp.asarray(fill.tokens(length, config.vocab_size))
    step = nnx.jit(lambda model, tokens, cache: model(tokens, cache=cache))
    part, cache = step(model, tokens[:, : length - 9], model.init_cache(1, length))
    parts = [part]
    for t in range(length - 9, length):
        part, cache = step(model, tokens[:, t : t + 1], cache)
        parts.append(part)
    assert_same_logits(jnp.concatenate(parts, axis=1)[0], wanted)


def test_many_rows_were_decided_by_a_tie():
    assert len(golden("every_layer")["tied"]) > 50


def test_shared_expert_without_clamp_is_deepseeks():
    """The other side of the switch, and that the clamp binds at all."""
    both = golden("clamped")
    config = dataclasses.replace(CASES["clamped"], clamp_shared=False)
    assert_same_logits(logits(config, len(both["logits"])), both["unclamped_logits"])
    assert np.abs(both["unclamped_logits"] - both["logits"]).max() > 1


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes_are_those_that_save_pretrained_writes(case):
    written = json.loads((GOLDEN / f"{case}.json").read_text())["shapes"]
    ours = filled.tensors(CASES[case], "transformers")
    assert {name: list(array.shape) for name, array in ours.items()} == written


def test_released_names():
    """Spot checks against the published list (specification of the checkpoint format)."""
    shapes = {name: array.shape for name, array in filled.tensors(TINY).items()}
    for name in (
        "embed.weight",
        "head.weight",
        "hc_head_fn",
        "layers.0.ffn.gate.tid2eid",
        "layers.1.ffn.gate.bias",
        "layers.1.attn.indexer.compressor.ape",
        "layers.3.attn.kv_norm.weight",
        "layers.3.ffn.experts.3.w2.weight",
        "layers.2.attn.compressor.wgate.weight",
    ):
        assert name in shapes
    assert shapes["layers.1.attn.compressor.ape"] == (4, 32)
    assert shapes["layers.2.attn.compressor.ape"] == (128, 16)
    assert not [n for n in shapes if n.startswith("layers.0.attn.comp") or "2.attn.indexer" in n]


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek_v4_flash", 284.33), ("deepseek_v4_pro", 1573.0)]
)
def test_number_of_parameters(name, billions):
    model = nnx.eval_shape(lambda: DeepseekV4(preset(name), rngs=nnx.Rngs(0)))
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model)))
    assert count / 1e9 == pytest.approx(billions, rel=1e-4)


def test_every_parameter_has_a_name_of_its_own():
    _, state = nnx.split(nnx.eval_shape(lambda: DeepseekV4(TINY, rngs=nnx.Rngs(0))))
    for layout in ("released", "transformers"):
        names = [tensor_name(path, layout) for path, _ in nnx.to_flat_state(state)]
        assert len(set(names)) == len(names)
