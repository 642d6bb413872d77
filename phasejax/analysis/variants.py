# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What makes two runs comparable: the fields in which variants differ, and the rest of a recipe.

A field of a config is either one of Variant, and then shows in the label where it departs from the
paper's default, or it is part of the recipe, and runs that differ in it have different recipes.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Variant:
    """One variant of the paper (paper, section "Variants"), or one of its kind.

    Fields have the names of a run's config, and the paper's choices as defaults.

    Attributes:
        attention: "full" for a control, or "compressed".
        window: W; None for a control, as is the stride.
        stride: S.
        num_kv_heads: K.
        gate: "scalar", "vector" or "uniform".
        tie_kv: values reuse the keys.
        post_norm: payloads are normalised.
        gate_bias: whether gates have per-offset biases.
        qk_norm: query and key heads are normalised.
        rope_fraction: part of a head that is rotated; the paper's partial RoPE is 1/8.
        exact_tokens: "window" or "tail".
        local_window: exact tokens.
        rotary_anchor: "window_start" or "stride_start".
        sink: one learned softmax logit a query head.
        separation: filler tokens between a record's key and value; 0 in the paper.
    """

    attention: str = "full"
    window: int | None = None
    stride: int | None = None
    num_kv_heads: int = 1
    gate: str = "scalar"
    tie_kv: bool = False
    post_norm: bool = False
    gate_bias: bool = True
    qk_norm: bool = True
    rope_fraction: float = 1.0
    exact_tokens: str = "window"
    local_window: int = 16
    rotary_anchor: str = "window_start"
    sink: bool = False
    separation: int = 0

    @property
    def is_control(self) -> bool:
        """Whether nothing is compressed."""
        return self.attention == "full"

    @property
    def signature(self) -> str:
        """Geometry, such as "W8/S4"."""
        return "full attention" if self.is_control else f"W{self.window}/S{self.stride}"

    @property
    def differences(self) -> tuple[str, ...]:
        """What but the geometry departs from the paper's default, in the paper's words."""
        default = Variant(self.attention, self.window, self.stride)
        kernel = dataclasses.replace(default, gate="vector", tie_kv=True, rope_fraction=0.125)
        is_kernel = (
            (self.window, self.stride) == (8, 4)
            and (self.tie_kv, self.rope_fraction) == (kernel.tie_kv, kernel.rope_fraction)
            and self.gate != "uniform"
        )
        base, names = (kernel, ["DeepSeek-style kernel"]) if is_kernel else (default, [])
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != getattr(base, field.name):
                names.append(in_words(field.name, value))
        return tuple(names)

    @property
    def label(self) -> str:
        """Name for a table or a figure, such as "W8/S8, no RoPE"."""
        return ", ".join((self.signature, *self.differences))

    @property
    def order(self) -> tuple:
        """Key to sort by: controls, then the plain geometries by stride, then the others."""
        plain = not self.differences
        return (not self.is_control, not plain, self.stride or 0, self.window or 0, self.label)


def in_words(name: str, value: Any) -> str:
    """A departure from the default, in the paper's words where it has some."""
    match name, value:
        case "num_kv_heads", _:
            return f"{value} KV heads"
        case "gate", _:
            return "uniform averaging" if value == "uniform" else f"{value} gates"
        case "tie_kv", True:
            return "tied K/V"
        case "post_norm", True:
            return "post-norm"
        case "gate_bias", False:
            return "no gate bias"
        case "qk_norm", False:
            return "no Q/K norm"
        case "rope_fraction", 0:
            return "no RoPE"
        case "rope_fraction", 0.125:
            return "partial RoPE"
        case "exact_tokens", "tail":
            return "uncompressed tail"
        case _, True:
            return name.replace("_", " ")
    return f"{name.replace('_', ' ')} {value}"


def variant_of(config: Mapping[str, Any]) -> Variant:
    """Reads the variant off a run's config; a field that is missing has the default.

    Args:
        config: flat config of a run.

    Returns:
        The variant.

    Raises:
        ValueError: the config does not say which attention it has, or lacks the window.
    """
    names = [field.name for field in dataclasses.fields(Variant)]
    variant = Variant(**{name: config[name] for name in names if name in config})
    if config.get("attention") not in ("full", "compressed"):
        raise ValueError(
            f"attention={config.get('attention')!r} is neither 'full' nor 'compressed'."
        )
    if variant.is_control:
        return dataclasses.replace(variant, window=None, stride=None)
    if not isinstance(variant.window, int):
        raise ValueError(f"window={variant.window!r}, but a compressed run has an integer window.")
    stride = variant.window if variant.stride is None else variant.stride
    return dataclasses.replace(variant, stride=stride)


# What may differ between runs of a recipe beside the fields of Variant: neither the model nor its
# training depends on it.
_FREE = {
    *("name", "seed", "recipe", "checkpoint_every", "keep_checkpoints", "microbatch_tokens"),
    *("eval_documents", "eval_seed", "eval_batch", "gate_documents"),
}


def recipe_of(config: Mapping[str, Any]) -> str:
    """The name that a config gives its recipe."""
    return str(config.get("recipe") or "default")


def recipe_names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The recipe of each run, with the fields in which runs of that recipe differ.

    Runs are seeds of one another, or a run and its control, only where everything but the variant
    agrees: model sizes, task and training.

    Args:
        configs: flat configs of the runs that are reported together.

    Returns:
        Names such as "long", or "long, width 128" where other runs of "long" have another width.
    """
    free = _FREE | {field.name for field in dataclasses.fields(Variant)}
    by_recipe: dict[str, list[Mapping[str, Any]]] = {}
    for config in configs:
        by_recipe.setdefault(recipe_of(config), []).append(config)
    names = []
    for config in configs:
        peers = by_recipe[recipe_of(config)]
        differing = [
            name
            for name, value in config.items()
            if name not in free and any(peer.get(name, value) != value for peer in peers)
        ]
        names.append(", ".join([recipe_of(config), *(in_words(n, config[n]) for n in differing)]))
    return names
