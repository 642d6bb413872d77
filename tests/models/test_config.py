# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a model may not be: each refusal names the field, its value and the remedy."""

import pytest

from phasejax.attention.masks import LocalSpan
from phasejax.models.config import COMPRESSION_ONLY, POSITIVE, SIZES, ModelConfig

COMPRESSED = {"attention": "compressed"}
UNLIKE_DEFAULT = {
    "window": 4,
    "stride": 4,
    "gate": "vector",
    "gate_bias": False,
    "tie_kv": True,
    "post_norm": True,
    "exact_tokens": "tail",
    "local_window": 8,
    "rotary_anchor": "stride_start",
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_positive(name):
    with pytest.raises(ValueError, match=rf"{name}=0.* at least 1: raise {name}"):
        ModelConfig(**{name: 0})


@pytest.mark.parametrize("name", POSITIVE)
def test_scales_are_positive_and_finite(name):
    for value in (0.0, -1.0):
        with pytest.raises(ValueError, match=rf"{name}={value}, but it must be above 0: raise"):
            ModelConfig(**{name: value})
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"{name}={value} \(float\), but .* a finite number"):
            ModelConfig(**{name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 4, "stride": 8}, r"window=4 is smaller than stride=8.*set window >= stride"),
        ({"stride": 0}, r"stride=0.*at least 1"),
        ({"num_heads": 6, "num_kv_heads": 4}, r"num_heads=6.*num_kv_heads=4"),
        ({"num_heads": 2, "num_kv_heads": 4}, r"num_heads=2.*num_kv_heads=4"),
        ({"head_dim": 8, "rope_fraction": 0.125}, r"rope_fraction=0\.125.*head_dim=8.*1 channels"),
        ({"head_dim": 15}, r"head_dim=15 rotates 15 channels.*even"),
        ({"rope_fraction": 1.5}, r"rope_fraction=1\.5"),
        ({"rope_fraction": -0.5}, r"rope_fraction=-0\.5"),
        ({"rope_fraction": 0.001}, r"rotates no channel.*rope_fraction=0"),
        ({"window": 18}, r"local_window=16 is smaller than window - 1 = 17.*raise local_window"),
        ({"local_window": 6}, r"local_window=6 is smaller than window - 1 = 7"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**COMPRESSED | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "compresed"}, r"did you mean 'compressed'"),
        ({"gate": "vectors"}, r"gate='vectors' is not one of scalar, vector, uniform.*'vector'"),
        ({"exact_tokens": "windows"}, r"did you mean 'window'"),
        ({"rotary_anchor": "stride"}, r"did you mean 'stride_start'"),
        ({"gate": "xyz"}, r"choose one of scalar, uniform, vector"),
    ],
)
def test_an_unknown_choice_names_the_closest(changes, message):
    # Past the type check of the constructor, which only tests have.
    config = object.__new__(ModelConfig)
    vars(config).update(vars(ModelConfig(**COMPRESSED)) | changes)
    with pytest.raises(ValueError, match=message):
        config.__post_init__()


@pytest.mark.parametrize("name", COMPRESSION_ONLY)
def test_full_attention_refuses_what_would_change_nothing(name):
    assert set(UNLIKE_DEFAULT) == set(COMPRESSION_ONLY)
    with pytest.raises(ValueError, match=rf"{name}=.*changes nothing in full attention"):
        ModelConfig(**{name: UNLIKE_DEFAULT[name]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate": "uniform", "gate_bias": False}, r"gate_bias=False changes nothing"),
        ({"rotary_anchor": "stride_start"}, r"rotary_anchor='stride_start' changes nothing"),
        (
            {"rotary_anchor": "stride_start", "stride": 4, "rope_fraction": 0.0},
            r"rotary_anchor='stride_start' changes nothing.*rope_fraction=0",
        ),
        ({"exact_tokens": "tail", "local_window": 12}, r"local_window=12 changes nothing"),
    ],
)
def test_a_variant_that_equals_its_baseline_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**COMPRESSED | changes)


def test_what_follows_from_the_fields():
    assert ModelConfig().span == LocalSpan(None)
    assert ModelConfig(**COMPRESSED).span == LocalSpan(16)
    tail = ModelConfig(**COMPRESSED, exact_tokens="tail", window=12)
    assert tail.span == LocalSpan(12, tail_only=True)
    assert tail.geometry.stride == 12
    assert (
        ModelConfig(**COMPRESSED, stride=4, rotary_anchor="stride_start").geometry.position(1)[0]
        == 4
    )
    assert ModelConfig(rope_fraction=0.125).rotary_dim == 16
    assert ModelConfig(head_dim=16, rope_fraction=0.125).rotary_dim == 2
    assert ModelConfig(**COMPRESSED, local_window=7).local_window == 7
