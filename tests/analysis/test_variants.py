# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""No field of a config is forgotten: it shows in the label, or it tells recipes apart."""

import dataclasses

import pytest

from phasejax.analysis.variants import Variant, recipe_names, variant_of
from phasejax.models.config import ModelConfig
from phasejax.tasks.record_lookup import TaskConfig
from phasejax.training.config import TrainConfig

BASE = {"name": "w8s4", "seed": 0, "recipe": "easy", "curriculum": [[2, 8, 8, 1200]]}
BASE |= dataclasses.asdict(ModelConfig(attention="compressed", num_kv_heads=1, stride=4))
BASE |= dataclasses.asdict(TaskConfig()) | dataclasses.asdict(TrainConfig())
NOT_LEARNING = {"checkpoint_every", "keep_checkpoints", "microbatch_tokens"}
FIELDS = [
    f.name for config in (ModelConfig, TaskConfig, TrainConfig) for f in dataclasses.fields(config)
]


def changed(name):
    value = BASE[name]
    if name == "attention":
        return BASE | {"attention": "full"}
    if isinstance(value, bool):
        return BASE | {name: not value}
    if isinstance(value, float):
        return BASE | {name: value / 2}
    return BASE | {name: 3 if value is None or isinstance(value, int) else f"not {value}"}


@pytest.mark.parametrize("name", sorted(set(FIELDS) - NOT_LEARNING))
def test_a_change_of_any_field_is_seen(name):
    other = changed(name)
    first, second = recipe_names([BASE, other])
    labels = variant_of(BASE).label, variant_of(other).label
    is_variant = name in {field.name for field in dataclasses.fields(Variant)}
    assert (labels[0] != labels[1]) == is_variant
    assert (first != second) != is_variant
    assert variant_of(BASE).differences == ()


@pytest.mark.parametrize("name", sorted(NOT_LEARNING | {"name", "seed"}))
def test_seeds_and_bookkeeping_are_no_difference(name):
    assert recipe_names([BASE, changed(name)]) == ["easy", "easy"]


def test_a_field_that_older_configs_lack_is_no_difference():
    assert recipe_names([BASE, BASE | {"new": 1}]) == ["easy", "easy"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_kv_heads": 4}, "4 KV heads"),
        ({"gate": "uniform"}, "uniform averaging"),
        ({"gate": "vector"}, "vector gates"),
        ({"tie_kv": True}, "tied K/V"),
        ({"post_norm": True}, "post-norm"),
        ({"gate_bias": False}, "no gate bias"),
        ({"qk_norm": False}, "no Q/K norm"),
        ({"rope_fraction": 0.0}, "no RoPE"),
        ({"rope_fraction": 0.125}, "partial RoPE"),
        ({"rope_fraction": 0.5}, "rope fraction 0.5"),
        ({"exact_tokens": "tail"}, "uncompressed tail"),
        ({"local_window": 32}, "local window 32"),
        ({"rotary_anchor": "stride_start"}, "rotary anchor stride_start"),
        ({"sink": True}, "sink"),
        ({"separation": 2}, "separation 2"),
        ({"gate": "vector", "tie_kv": True, "rope_fraction": 0.125}, "DeepSeek-style kernel"),
        ({"tie_kv": True, "rope_fraction": 0.125}, "DeepSeek-style kernel, scalar gates"),
        (
            {"gate": "uniform", "tie_kv": True, "rope_fraction": 0.125},
            "uniform averaging, tied K/V, partial RoPE",
        ),
    ],
)
def test_differences_in_words(fields, words):
    assert variant_of(BASE | fields).label == f"W8/S4, {words}"


def test_only_the_geometry_of_deepseek_is_its_kernel():
    fields = {"stride": 8, "gate": "vector", "tie_kv": True, "rope_fraction": 0.125}
    assert variant_of(BASE | fields).label == "W8/S8, vector gates, tied K/V, partial RoPE"


def test_a_control_has_no_window():
    assert variant_of(BASE | {"attention": "full", "stride": None}) == Variant()
