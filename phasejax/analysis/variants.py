# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What makes two runs comparable: the fields of a config that the paper's variants differ in."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Variant:
    """One variant of the paper (paper, section "Variants"), or one of its kind.

    Attributes:
        attention: "full" for a control, or "compressed".
        window: W; None for a control, as is the stride.
        stride: S.
        kv_heads: K.
        gate: "scalar", "vector" or "uniform".
        gate_bias: whether gates have per-offset biases.
        tie_kv: values reuse the keys.
        post_norm: payloads are normalised.
        qk_norm: query and key heads are normalised.
        rope: "full", "partial" or "none".
        exact_tokens: "window" or "tail".
        separation: filler tokens between a record's key and value; 0 in the paper.
    """

    attention: str = "full"
    window: int | None = None
    stride: int | None = None
    kv_heads: int = 1
    gate: str = "scalar"
    gate_bias: bool = True
    tie_kv: bool = False
    post_norm: bool = False
    qk_norm: bool = True
    rope: str = "full"
    exact_tokens: str = "window"
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
        """What else departs from the paper's default, in the paper's words."""
        deepseek = (
            (self.window, self.stride) == (8, 4)
            and self.tie_kv
            and self.rope == "partial"
            and self.gate in ("vector", "scalar")
        )
        tests = {
            f"{self.kv_heads} KV heads": self.kv_heads != 1,
            "DeepSeek-style kernel": deepseek,
            "scalar gates": deepseek and self.gate == "scalar",
            "uniform averaging": self.gate == "uniform",
            "vector gates": self.gate == "vector" and not deepseek,
            "tied K/V": self.tie_kv and not deepseek,
            "post-norm": self.post_norm,
            "no gate bias": not self.gate_bias,
            "no Q/K norm": not self.qk_norm,
            "no RoPE": self.rope == "none",
            "partial RoPE": self.rope == "partial" and not deepseek,
            "uncompressed tail": self.exact_tokens == "tail",
            f"separation {self.separation}": self.separation > 0,
        }
        return tuple(text for text, holds in tests.items() if holds)

    @property
    def label(self) -> str:
        """Name for a table or a figure, such as "W8/S8, no RoPE"."""
        return ", ".join((self.signature, *self.differences))

    @property
    def order(self) -> tuple:
        """Key to sort by: controls, then the plain geometries by stride, then the others."""
        plain = not self.differences
        return (not self.is_control, not plain, self.stride or 0, self.window or 0, self.label)


def variant_of(config: Mapping[str, Any]) -> Variant:
    """Reads the variant off a run's config; a field that is missing has the default.

    Args:
        config: flat config of a run.

    Returns:
        The variant.

    Raises:
        ValueError: the config does not say which attention it has, or lacks the window.
    """
    attention = config.get("attention")
    if attention not in ("full", "compressed"):
        raise ValueError(f"attention={attention!r} is neither 'full' nor 'compressed'.")
    shared: dict[str, Any] = {
        "kv_heads": int(config.get("num_kv_heads", 1)),
        "qk_norm": bool(config.get("qk_norm", True)),
        "separation": int(config.get("separation", 0)),
    }
    fraction = float(config.get("rope_fraction", 1.0))
    shared["rope"] = "full" if fraction == 1 else "partial" if fraction else "none"
    if attention == "full":
        return Variant(**shared)
    window = config.get("window")
    if not isinstance(window, int):
        raise ValueError(f"window={window!r}, but a compressed run has an integer window.")
    stride = config.get("stride")
    return Variant(
        attention="compressed",
        window=window,
        stride=window if stride is None else stride,
        gate=config.get("gate", "scalar"),
        gate_bias=bool(config.get("gate_bias", True)),
        tie_kv=bool(config.get("tie_kv", False)),
        post_norm=bool(config.get("post_norm", False)),
        exact_tokens=config.get("exact_tokens", "window"),
        **shared,
    )
