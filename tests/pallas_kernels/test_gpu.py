# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels for NVIDIA GPUs: values and gradients in interpret mode, and lowering for CUDA.

Cases and the loops that they must equal are those of each op's own tests, at sizes that Triton can
cut into tiles.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.chunk_pool import pallas_gpu as chunk_pool
from pallas_kernels.chunk_pool import reference as chunk_reference
from pallas_kernels.compressed_attention import pallas_gpu as compressed_attention
from pallas_kernels.index_topk import pallas_gpu as index_topk
from pallas_kernels.ragged_pool import pallas_gpu as ragged_pool
from pallas_kernels.ragged_pool import reference as ragged_reference
from pallas_kernels.selected_attention import pallas_gpu as selected_attention
from pallas_kernels.selected_attention import reference as selected_reference
from scripts.kernel_programs import function_of, programs
from tests.pallas_kernels import (
    test_chunk_pool,
    test_compressed_attention,
    test_index_topk,
    test_ragged_pool,
    test_selected_attention,
)
from tests.pallas_kernels.compare import assert_close, in_float64, lower_for_gpu, mostly_slow

TRITON = "__gpu$xla.gpu.triton"


class TestChunkPool:
    CASES = {
        "scalar": (2, 5, 4, 1, 8, 1),
        "by head, overlap, whole tiles": (1, 6, 3, 2, 8, 2),
        "vector, overlap": (2, 5, 4, 2, 8, 8),
        "fewer chunks than lanes": (1, 1, 2, 3, 4, 4),
    }
    call = staticmethod(
        functools.partial(chunk_pool.chunk_pool, blocks=chunk_pool.Blocks(2, 1), interpret=True)
    )

    @pytest.mark.parametrize(
        "name", mostly_slow(CASES, fast=("scalar", "by head, overlap, whole tiles"))
    )
    @pytest.mark.parametrize("dtype", mostly_slow(["float32", "bfloat16"], fast=("float32",)))
    def test_values_and_gradients(self, name, dtype):
        x = test_chunk_pool.operands(self.CASES[name], dtype)
        gradient, out = jax.jit(test_chunk_pool.values_and_gradients(self.call))(x)
        assert out.dtype == dtype
        assert_close(out, test_chunk_pool.by_loops(*x), dtype)
        wanted, _ = in_float64(test_chunk_pool.values_and_gradients(chunk_reference.chunk_pool), x)
        assert [g.dtype for g in gradient] == [v.dtype for v in x]
        assert_close(gradient, wanted, dtype)

    @pytest.mark.parametrize("shape", [(1, 1000, 4, 2, 512, 512), (1, 64, 8, 1, 1024, 8)])
    def test_lowers_forward_and_backward(self, shape):
        x = jax.eval_shape(functools.partial(test_chunk_pool.operands, shape, "bfloat16"))
        both = test_chunk_pool.values_and_gradients(lambda *x: chunk_pool.chunk_pool(*x))
        assert lower_for_gpu(both, x).count(TRITON) == 2

    @pytest.mark.parametrize("gates", [1, 6, 12, 512])
    def test_tiles_divide_the_gates(self, gates):
        assert gates % chunk_pool.gpu_heuristic(100, gates, 8).gate == 0

    def test_channels_that_are_no_tile_fall_through(self):
        x = test_chunk_pool.operands((1, 2, 2, 1, 6, 1))
        with pytest.raises(NotImplementedError, match="D / G=6"):
            chunk_pool.chunk_pool(*x)


class TestCompressedAttention:
    CASES = (
        "documents",
        "one array",
        "tail, sink, groups",
        "some positions",
        "nothing to read",
        "bfloat16",
    )

    @staticmethod
    def case(name):
        return dataclasses.replace(test_compressed_attention.CASES[name], head_dim=16)

    @pytest.mark.parametrize("name", mostly_slow(CASES, fast=("documents", "one array")))
    def test_values_and_gradients(self, name):
        case = self.case(name)
        arrays, _ = case.operands()
        call = functools.partial(
            compressed_attention.compressed_attention,
            blocks=compressed_attention.Blocks(4, 5, 2),
            interpret=True,
        )
        gradient, out = jax.jit(case.values_and_gradients(call))(arrays)
        assert out.dtype == case.dtype
        assert_close(out, case.by_loops(), case.dtype)
        for operand, wanted in test_compressed_attention.expected(case).items():
            assert gradient[operand].dtype == arrays[operand].dtype
            assert_close(gradient[operand], wanted, case.dtype, err_msg=operand)

    @pytest.mark.parametrize("name", ["documents", "bfloat16"])
    def test_lowers_forward_and_backward(self, name):
        case = dataclasses.replace(self.case(name), tokens=200, head_dim=128)
        both = case.values_and_gradients(compressed_attention.compressed_attention)
        # Forward, gradient of the queries, of the tokens, of the entries.
        assert lower_for_gpu(both, case.operands()[0]).count(TRITON) == 4

    @pytest.mark.parametrize("head_dim", [16, 64, 128, 512])
    def test_tiles_suit_triton(self, head_dim):
        blocks = compressed_attention.gpu_heuristic(head_dim)
        assert all(16 <= x <= 64 and x & (x - 1) == 0 for x in blocks)

    def test_only_tiles_that_meet_are_visited(self):
        """Each query reads 8 tokens and entries before it: half of their tiles."""
        tokens, reads = 64, None
        position = jnp.arange(tokens)[None]
        reads = compressed_attention.Reads(
            position,
            jnp.maximum(position - 7, 0),
            position // 32,
            position // 32,
            position[:, 3::4],
            position[:, 3::4] // 32,
        )
        near, far = compressed_attention._meetings(reads, compressed_attention.Blocks(8, 8, 2))
        np.testing.assert_array_equal(
            near.rows[0], [[0, 1], [0, 2], [1, 3], [2, 4], [4, 5], [4, 6], [5, 7], [6, 8]]
        )
        np.testing.assert_array_equal(
            near.queries[0], [[0, 2], [1, 3], [2, 4], [3, 4], [4, 6], [5, 7], [6, 8], [7, 8]]
        )
        first, stop = np.asarray(far.rows[0]).T
        np.testing.assert_array_equal(first, [0, 0, 0, 0, 4, 4, 4, 4])
        np.testing.assert_array_equal(stop, [1, 2, 3, 4, 5, 6, 7, 8])
        np.testing.assert_array_equal(far.queries[0], [[j, 4 + j // 4 * 4] for j in range(8)])


class TestIndexTopk:
    SHAPE = test_index_topk.SHAPE | {"head_dim": 16, "queries": 37}
    BLOCKS = index_topk.Blocks(8, 4, 16)

    @functools.cached_property
    def compiled(self):
        call = functools.partial(index_topk.index_topk, blocks=self.BLOCKS, interpret=True)
        return jax.jit(call, static_argnames=("picks",))

    @pytest.mark.parametrize("picks", mostly_slow([5, 20], fast=(20,)))
    def test_scores_and_ties_are_those_of_the_formula(self, picks):
        x = test_index_topk.operands(**self.SHAPE, documents=2, whole=True)
        index, score = test_index_topk.by_loops(x, picks)
        actual = self.compiled(**x, picks=picks)
        np.testing.assert_array_equal(actual.index, index)
        np.testing.assert_array_equal(actual.score, score)

    def test_zeros_of_either_sign_are_a_tie(self):
        x = test_index_topk.operands(**self.SHAPE | {"heads": 1}, whole=True)
        x["query"], x["weight"] = jnp.ones_like(x["query"]), -jnp.ones_like(x["weight"])
        sign = jnp.where(jnp.arange(x["key"].shape[1]) % 3, -0.0, 0.0)
        x["key"] = jnp.broadcast_to(sign[None, :, None], x["key"].shape)
        actual = self.compiled(**x, picks=5)
        np.testing.assert_array_equal(actual.index, test_index_topk.by_loops(x, 5)[0])

    @pytest.mark.slow
    def test_gradients_of_the_scores(self):
        x = test_index_topk.operands(**self.SHAPE, seed=3)
        call = functools.partial(index_topk.index_topk, blocks=self.BLOCKS, interpret=True)
        actual = jax.jit(test_index_topk.gradients(call))(x)
        contract = test_index_topk.reference.index_topk
        assert_close(actual, in_float64(test_index_topk.gradients(contract), x))


class TestSelectedAttention:
    SHAPE = test_selected_attention.SHAPE | {
        "batch": 1,
        "tokens": 8,
        "heads": 64,  # two tiles to a key-value head
        "head_dim": 16,
    }
    call = staticmethod(
        functools.partial(
            selected_attention.selected_attention,
            window=test_selected_attention.WINDOW,
            blocks=selected_attention.Blocks(16, 2),
            interpret=True,
        )
    )

    @pytest.mark.parametrize(
        "variant",
        mostly_slow(test_selected_attention.VARIANTS, fast=("after less than a window",)),
    )
    def test_values(self, variant):
        x = test_selected_attention.operands(
            **self.SHAPE | test_selected_attention.VARIANTS[variant]
        )
        actual = jax.jit(self.call)(*x)
        expected = test_selected_attention.by_loops(*x, test_selected_attention.WINDOW)
        assert actual.dtype == x[0].dtype
        assert_close(actual, expected, str(x[0].dtype))

    @pytest.mark.slow
    def test_gradients(self):
        x = test_selected_attention.real_first(test_selected_attention.operands(**self.SHAPE))
        contract = functools.partial(
            selected_reference.selected_attention, window=test_selected_attention.WINDOW
        )
        gradients = test_selected_attention.gradients
        assert_close(jax.jit(gradients(self.call))(*x), in_float64(gradients(contract), *x))

    def test_too_few_heads_for_a_product_fall_through(self):
        x = test_selected_attention.operands(**self.SHAPE | {"heads": 4})
        with pytest.raises(NotImplementedError, match="N / K=2"):
            self.call(*x)


class TestRaggedPool:
    call = staticmethod(
        functools.partial(ragged_pool.ragged_pool, blocks=ragged_pool.Blocks(4, 2), interpret=True)
    )

    @pytest.mark.parametrize("variant", mostly_slow(test_ragged_pool.VARIANTS, fast=("vector",)))
    def test_values_and_gradients(self, variant):
        x = test_ragged_pool.operands(**test_ragged_pool.SHAPE | test_ragged_pool.VARIANTS[variant])
        entries, dtype = test_ragged_pool.ENTRIES, str(x[0].dtype)
        actual = jax.jit(functools.partial(self.call, entries=entries))(*x)
        assert actual.dtype == dtype
        assert_close(actual, test_ragged_pool.by_loops(*x, entries), dtype)
        gradients = test_ragged_pool.gradients
        expected = in_float64(gradients(ragged_reference.ragged_pool), *x)
        assert_close(jax.jit(gradients(self.call))(*x), expected, dtype)

    def test_no_tokens_in_any_chunk(self):
        value, score, chunk = test_ragged_pool.operands(**test_ragged_pool.SHAPE)
        nothing = jnp.full_like(chunk, test_ragged_pool.ENTRIES)
        for x in jax.jit(test_ragged_pool.gradients(self.call))(value, score, nothing):
            assert (x == 0).all()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            p, id=f"{p.op}-{p.shape}-{p.direction}", marks=[] if fast else pytest.mark.slow
        )
        for p in programs("pallas_gpu")
        for fast in [p.shape.endswith("128k")]
    ],
)
def test_lowers_at_the_shapes_of_real_models(program):
    function, operands = function_of(program, "pallas_gpu")
    kernels = lower_for_gpu(function, *operands).count(TRITON)
    in_plain_jax = program.op == "selected_attention"
    assert (kernels > 0) == (program.direction == "forward" or not in_plain_jax)
