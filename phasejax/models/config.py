# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a decoder is made of. Every choice is checked here, before anything is compiled."""

import dataclasses
from typing import Literal

from phasejax.attention.masks import LocalSpan
from phasejax.compress.geometry import RotaryAnchor, WindowGeometry
from phasejax.compress.static import Gate
from phasejax.typing import DType
from phasejax.validation import check_above, check_at_least, check_fields

SIZES = (
    "vocab_size",
    "num_layers",
    "width",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "mlp_width",
    "window",
    "local_window",
)
POSITIVE = ("rope_theta", "norm_eps", "init_std", "embed_std")
COMPRESSION_ONLY = (
    "window",
    "stride",
    "gate",
    "gate_bias",
    "tie_kv",
    "post_norm",
    "exact_tokens",
    "local_window",
    "rotary_anchor",
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A Qwen3 decoder with full or compressed attention; defaults are Qwen3-0.6B's public ones.

    Attributes:
        vocab_size: V.
        num_layers: decoder layers.
        width: D.
        num_heads: N.
        num_kv_heads: K.
        head_dim: H.
        mlp_width: inner width of SwiGLU.
        attention: "full" reads every token; "compressed" reads exact tokens nearby and entries.
        window: W.
        stride: S; None means S = W.
        gate: weight of the offsets: "scalar" for each KV head, "vector" for each channel,
            "uniform" 1/W.
        gate_bias: whether gates have per-offset biases.
        tie_kv: values reuse the normalised, rotated keys, in the entries and in the exact part.
        post_norm: payloads are RMS-normalised after their projection.
        exact_tokens: "window" keeps the last local_window tokens exact, "tail" only those of the
            current incomplete window.
        local_window: exact tokens, the query's own included; the paper's is 16.
        rotary_anchor: rotary position of an entry; the paper does not state it, see WindowGeometry.
        rope_theta: base of the rotary frequencies.
        rope_fraction: part of a head that is rotated: 1 all, 0 none; the paper's partial one is
            1/8.
        qk_norm: RMSNorm on every query and key head.
        sink: one learned softmax logit a query head.
        tie_embeddings: the output matrix is the embedding.
        norm_eps: epsilon of every RMSNorm.
        init_std: standard deviation of weights; None means fan_in ** -0.5.
        embed_std: standard deviation of embeddings.
        param_dtype: dtype of the parameters.
        compute_dtype: dtype of the products; gates and softmax are float32 always.

    Raises:
        ValueError: naming the field, its value and the remedy.
    """

    vocab_size: int = 151_936
    num_layers: int = 28
    width: int = 1024
    num_heads: int = 16
    num_kv_heads: int = 8
    head_dim: int = 128
    mlp_width: int = 3072
    attention: Literal["full", "compressed"] = "full"
    window: int = 8
    stride: int | None = None
    gate: Gate = "scalar"
    gate_bias: bool = True
    tie_kv: bool = False
    post_norm: bool = False
    exact_tokens: Literal["window", "tail"] = "window"
    local_window: int = 16
    rotary_anchor: RotaryAnchor = "window_start"
    rope_theta: float = 1_000_000.0
    rope_fraction: float = 1.0
    qk_norm: bool = True
    sink: bool = False
    tie_embeddings: bool = True
    norm_eps: float = 1e-6
    init_std: float | None = 0.02
    embed_std: float = 0.02
    param_dtype: DType = "float32"
    compute_dtype: DType = "float32"

    @property
    def geometry(self) -> WindowGeometry:
        """The grid of windows."""
        stride = self.window if self.stride is None else self.stride
        return WindowGeometry(self.window, stride, self.rotary_anchor)

    @property
    def span(self) -> LocalSpan:
        """The exact tokens that a query reads."""
        if self.attention == "full":
            return LocalSpan(None)
        if self.exact_tokens == "tail":
            return LocalSpan(self.window, tail_only=True)
        return LocalSpan(self.local_window)

    @property
    def rotary_dim(self) -> int:
        """Rotated channels of a head."""
        return round(self.head_dim * self.rope_fraction)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in SIZES:
            check_at_least(self, name, 1)
        for name in POSITIVE:
            if getattr(self, name) is not None:
                check_above(self, name, 0)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}:"
                " each KV head serves the same number of query heads."
            )
        if not 0 <= self.rope_fraction <= 1 or self.rotary_dim % 2:
            raise ValueError(
                f"rope_fraction={self.rope_fraction} of head_dim={self.head_dim} rotates"
                f" {self.head_dim * self.rope_fraction:g} channels: choose a fraction in 0..1 that"
                " gives an even number."
            )
        if self.rope_fraction and not self.rotary_dim:
            raise ValueError(
                f"rope_fraction={self.rope_fraction} of head_dim={self.head_dim} rotates no"
                " channel, which is what rope_fraction=0 says: raise it or say 0."
            )
        if self.attention == "full":
            self._check_full()
        else:
            self._check_compressed()

    def _check_full(self) -> None:
        for name in COMPRESSION_ONLY:
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != default:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} changes nothing in full attention, so the"
                    f" variant would equal its baseline: leave it at {default!r} or set"
                    " attention='compressed'."
                )

    def _check_compressed(self) -> None:
        grid = self.geometry  # checks window and stride
        if self.gate == "uniform" and not self.gate_bias:
            raise ValueError(
                "gate_bias=False changes nothing with gate='uniform', which has no biases, so the"
                " variant would equal its baseline: leave gate_bias at True."
            )
        if self.rotary_anchor == "stride_start" and (
            grid.window == grid.stride or not self.rope_fraction
        ):
            raise ValueError(
                f"rotary_anchor='stride_start' changes nothing at window={grid.window},"
                f" stride={grid.stride}, rope_fraction={self.rope_fraction}, so the variant would"
                " equal its baseline: leave it at 'window_start', or let windows overlap and"
                " rotate."
            )
        if self.exact_tokens == "window" and self.local_window < self.window - 1:
            raise ValueError(
                f"local_window={self.local_window} is smaller than window - 1 = {self.window - 1},"
                " so some tokens would be neither exact nor in a visible entry: raise"
                " local_window."
            )
        if self.exact_tokens == "tail" and self.local_window != ModelConfig.local_window:
            raise ValueError(
                f"local_window={self.local_window} changes nothing with exact_tokens='tail': leave"
                f" it at {ModelConfig.local_window}."
            )
