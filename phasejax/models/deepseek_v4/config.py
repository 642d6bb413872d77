# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a DeepSeek-V4 decoder is made of. Every choice is checked before anything is compiled."""

import dataclasses
from typing import Literal

from phasejax.models.deepseek_v4.rope import Rotary, Yarn
from phasejax.typing import DType
from phasejax.validation import check_above, check_at_least, check_fields


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How the layers of one compression ratio make entries.

    Attributes:
        overlap: windows of two strides: an entry also reads the other lane of the window before.
        gated: a softmax over the window weighs its tokens; otherwise there is one token, ungated.
        biased: the gate has a learned bias for each slot and channel.
        index: where the indexer's keys come from: "windows" is a compressor of its own, "latent" a
            map of the entries, None no indexer, so that a query reads every visible entry.
    """

    overlap: bool
    gated: bool
    biased: bool
    index: Literal["windows", "latent"] | None


# Ratios 4 (CSA) and 128 (HCA) are DeepSeek-V4's, 2 and 1 are V4.1's.
SCHEMES = {
    128: Scheme(overlap=False, gated=True, biased=True, index=None),
    4: Scheme(overlap=True, gated=True, biased=True, index="windows"),
    2: Scheme(overlap=False, gated=True, biased=False, index="latent"),
    1: Scheme(overlap=False, gated=False, biased=False, index="latent"),
}

FP8_GROUP, FP4_GROUP = 64, 32  # channels that DeepSeek's code rounds by one scale

SIZES = (
    "vocab_size",
    "num_layers",
    "width",
    "num_heads",
    "head_dim",
    "query_rank",
    "output_groups",
    "output_rank",
    "local_window",
    "num_experts",
    "experts_per_token",
    "expert_width",
    "index_heads",
    "index_dim",
    "index_topk",
    "candidate_size",
    "candidate_blocks",
    "streams",
    "sinkhorn_iterations",
)
POSITIVE = (
    "route_scale",
    "swiglu_limit",
    "hyper_eps",
    "norm_eps",
    "init_std",
)


@dataclasses.dataclass(frozen=True)
class DeepseekV4Config:
    """A DeepSeek-V4 decoder (arXiv:2606.19348), with what its V4.1 (arXiv:2609.19969) attends by.

    Attributes:
        vocab_size: V.
        num_layers: decoder layers.
        width: D.
        num_heads: N.
        head_dim: H, channels of a head and of an entry.
        rotary_dim: rotated channels, the last ones of a head and of an index key.
        query_rank: width of the latent that queries are made from.
        output_groups: groups of heads that are projected apart.
        output_rank: width of each group's projection.
        local_window: exact tokens that a query reads, its own included.
        compress_ratios: tokens an entry, by layer; 0 means exact tokens only. Further ratios, those
            of draft layers, are allowed and not used.
        kv_sources: compressed layers that make entries; the others read those of the latest source.
            None means that each makes its own.
        index_sources: layers that select entries; the others read what the latest one selected.
            None means that each layer with an indexer selects.
        index_heads: heads of the indexer.
        index_dim: their channels.
        index_topk: entries that a query reads where there is an indexer.
        candidate_source: an index source that also chooses blocks of entries, within which the
            later ones search; None means that each searches all.
        candidate_size: entries of a block.
        candidate_blocks: blocks that a query keeps.
        num_experts: routed experts.
        experts_per_token: how many a token visits.
        expert_width: inner width of an expert, the shared one too.
        route_scale: factor of the routing weights.
        num_hash_layers: first layers, whose experts are a function of the token alone.
        swiglu_limit: clamp of the routed experts' gate and up products.
        clamp_shared: clamps the shared expert as well. DeepSeek's V4 code does not, transformers
            and V4.1 do.
        streams: residual streams of the hyper-connections.
        sinkhorn_iterations: alternations that make the mixing matrix doubly stochastic.
        hyper_eps: floor in them.
        rope_theta: base of the frequencies in layers of ratio 0.
        compress_rope_theta: base in compressed layers.
        yarn: context extension in compressed layers.
        rotary_dtype: "float32", or "compute", which rounds sines to the activations' dtype as
            transformers does.
        query_head_norm: RMSNorm without weights on every query head; V4.1 has none.
        quantized: rounds entries, exact keys, index queries and index keys as DeepSeek's V4 code
            does, to FP8 and FP4; transformers does not.
        norm_eps: epsilon of every RMSNorm.
        init_std: standard deviation of weights.
        param_dtype: dtype of matrices; norms, gate biases, sinks and hyper-connections are float32.
        compute_dtype: dtype of products; gates, routing, softmax and mixing are float32.

    Raises:
        ValueError: naming the field, its value and the remedy.
    """

    vocab_size: int
    num_layers: int
    width: int
    num_heads: int
    query_rank: int
    output_groups: int
    num_experts: int
    expert_width: int
    route_scale: float
    index_topk: int
    compress_ratios: tuple[int, ...]
    head_dim: int = 512
    rotary_dim: int = 64
    output_rank: int = 1024
    local_window: int = 128
    kv_sources: tuple[int, ...] | None = None
    index_sources: tuple[int, ...] | None = None
    index_heads: int = 64
    index_dim: int = 128
    candidate_source: int | None = None
    candidate_size: int = 8
    candidate_blocks: int = 2048
    experts_per_token: int = 6
    num_hash_layers: int = 3
    swiglu_limit: float = 10.0
    clamp_shared: bool = False
    streams: int = 4
    sinkhorn_iterations: int = 20
    hyper_eps: float = 1e-6
    rope_theta: float = 10_000.0
    compress_rope_theta: float = 160_000.0
    yarn: Yarn | None = Yarn()
    rotary_dtype: Literal["float32", "compute"] = "float32"
    query_head_norm: bool = True
    quantized: bool = False
    norm_eps: float = 1e-6
    init_std: float = 0.02
    param_dtype: DType = "float32"
    compute_dtype: DType = "float32"

    def ratio(self, layer: int) -> int:
        """Tokens an entry, 0 without entries."""
        return self.compress_ratios[layer]

    def scheme(self, layer: int) -> Scheme | None:
        """How a layer's entries are made; None without entries."""
        return SCHEMES.get(self.ratio(layer))

    def makes_entries(self, layer: int) -> bool:
        """Whether a layer has a compressor of its own."""
        return self.ratio(layer) > 0 and (self.kv_sources is None or layer in self.kv_sources)

    def selects(self, layer: int) -> bool:
        """Whether a layer has an indexer of its own."""
        scheme = self.scheme(layer)
        if scheme is None or scheme.index is None:
            return False
        return self.index_sources is None or layer in self.index_sources

    def rotary(self, layer: int) -> Rotary:
        """Frequencies of a layer: all its rotations, entries and indexer included, share them."""
        rounds = self.rotary_dtype == "compute"
        if self.ratio(layer) == 0:
            return Rotary(self.rope_theta, self.rotary_dim, None, rounds)
        return Rotary(self.compress_rope_theta, self.rotary_dim, self.yarn, rounds)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in SIZES:
            check_at_least(self, name, 1)
        for name in POSITIVE:
            check_above(self, name, 0)
        for name in ("rope_theta", "compress_rope_theta"):
            check_above(self, name, 1)  # at 1 all pairs of channels would turn alike
        check_at_least(self, "num_hash_layers", 0)
        self._check_shapes()
        self._check_ratios()
        self._check_sources("kv_sources", self.kv_sources)
        self._check_sources("index_sources", self.index_sources)
        self._check_sharing()

    def _check_shapes(self) -> None:
        smallest = min(self.head_dim, self.index_dim)
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= smallest:
            raise ValueError(
                f"rotary_dim={self.rotary_dim}, but pairs of channels are rotated in heads of"
                f" head_dim={self.head_dim} and index_dim={self.index_dim}: choose an even number"
                f" in 2..{smallest}."
            )
        plain = self.head_dim - self.rotary_dim
        if self.quantized and (plain % FP8_GROUP or self.index_dim % FP4_GROUP):
            raise ValueError(
                f"quantized=True rounds head_dim - rotary_dim = {plain} channels in groups of"
                f" {FP8_GROUP} and index_dim={self.index_dim} in groups of {FP4_GROUP}: choose"
                " multiples of these, or quantized=False."
            )
        if self.quantized and self.index_dim & (self.index_dim - 1):
            raise ValueError(
                f"index_dim={self.index_dim} with quantized=True, but a Hadamard transform needs a"
                " power of two: choose one, or quantized=False."
            )
        if self.num_heads % self.output_groups:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of output_groups="
                f"{self.output_groups}: each group takes the same number of heads."
            )
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token={self.experts_per_token} of num_experts={self.num_experts}: a"
                " token visits distinct experts, so lower experts_per_token."
            )

    def _check_ratios(self) -> None:
        if len(self.compress_ratios) < self.num_layers:
            raise ValueError(
                f"compress_ratios has {len(self.compress_ratios)} entries for num_layers="
                f"{self.num_layers}: give one ratio for each layer."
            )
        unknown = sorted({r for r in self.compress_ratios if r != 0 and r not in SCHEMES})
        if unknown:
            raise ValueError(
                f"compress_ratios holds {unknown}, but it is known how to compress by"
                f" {sorted(SCHEMES)} only, and 0 means exact tokens alone."
            )

    def _check_sources(self, name: str, sources: tuple[int, ...] | None) -> None:
        if sources is None:
            return
        indexed = name == "index_sources"
        for layer in sources:
            scheme = self.scheme(layer) if 0 <= layer < self.num_layers else None
            if scheme is None or (indexed and scheme.index is None):
                need = "has an indexer" if indexed else "is compressed"
                raise ValueError(f"{name}={sources}: {layer} is no layer that {need}; remove it.")
        for layer in range(self.num_layers):
            scheme = self.scheme(layer)
            if scheme is None or (indexed and scheme.index is None):
                continue
            earlier = [source for source in sources if source <= layer]
            if not earlier or self.ratio(max(earlier)) != self.ratio(layer):
                raise ValueError(
                    f"{name}={sources}: layer {layer} of ratio {self.ratio(layer)} has no source of"
                    " that ratio at or before it, so it would have nothing to read: add one."
                )

    def _check_sharing(self) -> None:
        for layer in range(self.num_layers):
            scheme = self.scheme(layer)
            makes = self.makes_entries(layer)
            if scheme and scheme.index and makes and not self.selects(layer):
                raise ValueError(
                    f"layer {layer} is in kv_sources={self.kv_sources} but not in index_sources="
                    f"{self.index_sources}: a selection from older entries means nothing for new"
                    " ones, so add it to index_sources."
                )
            if scheme and scheme.index == "windows" and not makes and self.selects(layer):
                raise ValueError(
                    f"layer {layer} of ratio {self.ratio(layer)} selects from entries of"
                    f" kv_sources={self.kv_sources}: its indexer compresses windows itself and"
                    " shares no keys, so make it a source or let it share the selection."
                )
        if self.candidate_source is not None and not (
            0 <= self.candidate_source < self.num_layers and self.selects(self.candidate_source)
        ):
            raise ValueError(
                f"candidate_source={self.candidate_source} is no layer that selects: name one of"
                " the index sources, or None."
            )
