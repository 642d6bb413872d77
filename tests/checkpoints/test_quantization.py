# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every code of every format against tables built from its bits, and blocks cut off at edges."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasejax.checkpoints.quantization import (
    E4M3,
    E8M0,
    dequantize,
    is_quantized,
    quantize_fp4,
    quantize_fp8,
)

FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(byte: int) -> float:
    """1 bit of sign, 4 of exponent with bias 7, 3 of mantissa; all ones is NaN."""
    sign = -1.0 if byte & 128 else 1.0
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


def e2m1(nibble: int) -> float:
    return (-1.0 if nibble & 8 else 1.0) * FP4_MAGNITUDES[nibble & 7]


def e8m0(byte: int) -> float:
    return math.nan if byte == 255 else 2.0 ** (byte - 127)


def same(array: np.ndarray, expected) -> None:
    """Equal bits, but for NaN's own: a negative zero is no zero."""
    expected = np.asarray(expected, array.dtype)
    np.testing.assert_array_equal(array.astype(np.float64), expected.astype(np.float64))
    finite = ~np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(array)[finite], np.signbit(expected)[finite])


def scales_of(*bytes_: int) -> np.ndarray:
    return np.array(bytes_, np.uint8).view(E8M0)


def spelled_out(weight, scale, block) -> np.ndarray:
    """One value after the other; codes of fp8 by table."""
    rows, columns = weight.shape
    raw = weight.view(np.uint8)
    return np.array(
        [
            [
                e4m3(int(raw[i, j])) * float(scale[i // block[0], j // block[1]])
                for j in range(columns)
            ]
            for i in range(rows)
        ]
    )


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_every_fp8_code(dtype):
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128).view(E4M3)
    got = dequantize(codes, scales_of(127).reshape(1, 1), dtype)
    assert got.dtype == dtype and got.shape == (2, 128)
    same(got, np.array([e4m3(b) for b in range(256)]).reshape(2, 128))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_every_byte_of_two_fp4_codes(dtype):
    packed = np.arange(256, dtype=np.uint8).view(np.int8).reshape(16, 16)
    got = dequantize(packed, np.full((16, 1), 1.0, E8M0), dtype)
    expected = [v for b in range(256) for v in (e2m1(b & 15), e2m1(b >> 4))]  # low nibble first
    assert got.dtype == dtype
    same(got, np.reshape(expected, (16, 32)))


def test_every_e8m0_code_for_both_formats():
    scales = scales_of(*range(256))
    ones = np.full((256, 16), 0b0010_0010, np.int8)  # 1.0 twice
    same(
        dequantize(ones, scales.reshape(256, 1), FLOAT32),
        np.repeat([[e8m0(b)] for b in range(256)], 32, 1),
    )
    one = np.ones((256, 1), E4M3)
    same(
        dequantize(one, scales.reshape(256, 1), FLOAT32, fp8_block=(1, 32)),
        [[e8m0(b)] for b in range(256)],
    )


def test_every_fp8_code_with_every_e8m0_code():
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1)).view(E4M3)
    got = dequantize(codes, scales_of(*range(256)).reshape(256, 1), FLOAT32, fp8_block=(1, 256))
    exact = np.array([[e4m3(c) * e8m0(s) for c in range(256)] for s in range(256)])
    representable = np.isnan(exact) | (np.abs(exact) <= np.finfo(np.float32).max)
    same(got[representable], exact[representable])
    assert np.isinf(got[~representable]).all()


@pytest.mark.parametrize("shape", [(1, 1), (4, 8), (5, 9), (8, 7), (3, 17)])
@pytest.mark.parametrize("scale_dtype", [E8M0, FLOAT32], ids=str)
def test_blocks_that_the_edge_cuts_off(shape, scale_dtype):
    block = (4, 8)
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 127, shape).astype(np.uint8).view(E4M3)
    grid = (-(-shape[0] // 4), -(-shape[1] // 8))
    scale = np.ldexp(1.0, rng.integers(-9, 9, grid)).astype(scale_dtype)
    if scale_dtype == FLOAT32:
        scale *= rng.uniform(1, 2, grid).astype(np.float32)
    got = dequantize(weight, scale, FLOAT32, fp8_block=block)
    same(got, spelled_out(weight, scale, block).astype(np.float32))


def test_a_last_fp4_group_may_be_short():
    packed = np.full((1, 24), 0b0100_0010, np.int8)  # 1.0, then 2.0
    got = dequantize(packed, scales_of(127, 130).reshape(1, 2), FLOAT32)
    same(got, [[1.0, 2.0] * 16 + [8.0, 16.0] * 8])


def test_128_is_the_default_block_and_32_is_refused_for_it():
    weight = np.ones((130, 256), E4M3)
    scale = np.array([[1, 2], [4, 8]], E8M0)
    got = dequantize(weight, scale, FLOAT32)
    assert (got[127, 127], got[127, 128], got[128, 127], got[129, 255]) == (1, 2, 4, 8)
    with pytest.raises(ValueError, match=r"\[2, 2\], but .* \(32, 32\) need .*\[5, 8\]: check"):
        dequantize(weight, scale, FLOAT32, fp8_block=(32, 32))


@pytest.mark.parametrize(
    ("weight", "scale", "message"),
    [
        (np.ones((4, 4), E4M3), np.ones((1, 1), np.float16), "scale is float16"),
        (np.ones((4, 4), np.int8), np.ones((4, 1), np.float32), "need float8_e8m0fnu"),
        (np.ones((4, 4), np.int8), np.ones((4, 2), E8M0), r"\[4, 8\] in blocks of \(1, 32\)"),
        (np.ones((4, 4), BFLOAT16), np.ones((1, 1), E8M0), "weight has dtype bfloat16"),
    ],
)
def test_what_is_no_such_format_is_refused(weight, scale, message):
    with pytest.raises(ValueError, match=message):
        dequantize(weight, scale, FLOAT32)


def test_what_needs_a_scale():
    assert is_quantized(E4M3) and is_quantized(np.dtype(np.int8))
    assert not is_quantized(BFLOAT16) and not is_quantized(np.dtype(np.int64))


def nearest_error(values, scale, codes) -> np.ndarray:
    """Distance of each value from the nearest code of its scale, by trying all."""
    return np.abs(values[:, None] - scale[:, None] * np.array(codes)).min(1)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(3, 10), (8, 32), (9, 34)]), st.integers(-30, 30))
def test_quantisers_take_the_nearest_code_and_round_trip(seed, shape, exponent):
    rng = np.random.default_rng(seed)
    values = np.ldexp(rng.normal(size=shape), exponent).astype(np.float32)
    values[rng.random(shape) < 0.2] = 0.0
    fp8 = [c for b in range(256) if not math.isnan(c := e4m3(b))]
    cases = [(quantize_fp4(values), (1, 32), [e2m1(n) for n in range(16)])]
    cases += [
        (quantize_fp8(values, block=(4, 8), scale_dtype=d), (4, 8), fp8) for d in (E8M0, FLOAT32)
    ]
    for (weight, scale), block, codes in cases:
        got = dequantize(weight, scale, FLOAT32, fp8_block=block)
        rows, columns = (np.arange(n) // b for n, b in zip(shape, block, strict=True))
        own = scale.astype(np.float64)[rows][:, columns]
        error = np.abs(got.astype(np.float64) - values)
        best = nearest_error(values.ravel().astype(np.float64), own.ravel(), codes)
        assert (error.ravel() <= best + 1e-6 * own.ravel() * max(codes)).all()
        if scale.dtype == E8M0:  # what a format holds, it holds again
            again = (
                quantize_fp4(got)
                if weight.dtype == np.int8
                else quantize_fp8(got, block=block, scale_dtype=E8M0)
            )
            np.testing.assert_array_equal(dequantize(*again, FLOAT32, fp8_block=block), got)


def test_scales_are_the_smallest_that_fit():
    def scales(*values):
        return [float(quantize_fp8(np.array([[v]], np.float32))[1][0, 0]) for v in values]

    assert scales(448.0, 448.1, 224.0, -896.0, 0.0) == [1.0, 2.0, 0.5, 2.0, 1.0]
    assert scales(2.0**-130) == [2.0**-127]  # the smallest that e8m0 can say
    assert float(quantize_fp4(np.array([[6.0, 0.1]], np.float32))[1][0, 0]) == 1.0
    assert float(quantize_fp4(np.array([[6.1, 0.1]], np.float32))[1][0, 0]) == 2.0


def test_fp4_packs_pairs():
    with pytest.raises(ValueError, match=r"values has shape \(2, 3\), but fp4 packs pairs"):
        quantize_fp4(np.zeros((2, 3), np.float32))
