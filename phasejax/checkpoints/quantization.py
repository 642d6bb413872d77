# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights in blocks that share a scale: fp8 e4m3, and fp4 e2m1 packed two a byte.

=======  =================  ============================  ==============================
format   stored             block of one scale            scales
=======  =================  ============================  ==============================
fp8      e4m3 [R, C]        128 x 128 (V4.1: 32 x 32)     e8m0, or float32 (V4's Base)
fp4      int8 [R, C / 2]    1 x 32                        e8m0
=======  =================  ============================  ==============================

R is the output axis and C the input axis. A value is code * scale; e8m0 is 2^(byte - 127). The
low half of a byte is the even index. Source: the layout of the released DeepSeek-V4 files.
"""

from typing import Protocol, runtime_checkable

import ml_dtypes
import numpy as np

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
PACKED = np.dtype(np.int8)
FP8_BLOCK = (128, 128)
FP4_BLOCK = (1, 32)

_BYTES = np.arange(256, dtype=np.uint8)
# Both values of each byte, [256, 2].
_FP4_PAIRS = np.stack([_BYTES & 15, _BYTES >> 4], -1).view(E2M1).astype(np.float32)


def is_quantized(dtype: np.dtype) -> bool:
    """Whether a weight of this dtype needs a scale."""
    return dtype in (E4M3, PACKED)


@runtime_checkable
class Header(Protocol):
    """What is known of a tensor that has not been read."""

    @property
    def dtype(self) -> np.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def real_shape(weight: Header) -> tuple[int, ...]:
    """Shape of the values that a stored weight holds."""
    if weight.dtype == PACKED and weight.shape:
        return (*weight.shape[:-1], 2 * weight.shape[-1])
    return weight.shape


def check_scale(weight: Header, scale: Header, *, fp8_block: tuple[int, int] = FP8_BLOCK) -> None:
    """Refuses a weight and a scale that do not belong together; see `dequantize`.

    Raises:
        ValueError: if weight or scale has another dtype, or the scales are not one a block.
    """
    if not is_quantized(weight.dtype):
        raise ValueError(
            f"weight has dtype {weight.dtype}, but a quantised one has {E4M3} or {PACKED}: it needs"
            " no scale."
        )
    shape = real_shape(weight)
    if len(shape) != 2:
        raise ValueError(
            f"weight is {weight.dtype} of shape {list(weight.shape)}, but only matrices are"
            " quantised: store it in float32."
        )
    block, kinds = FP4_BLOCK, (E8M0,)
    if weight.dtype == E4M3:
        block, kinds = fp8_block, (E8M0, np.dtype(np.float32))
    expected = tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
    if scale.dtype not in kinds or scale.shape != expected:
        raise ValueError(
            f"scale is {scale.dtype}{list(scale.shape)}, but {weight.dtype} weights of shape"
            f" {list(shape)} in blocks of {block} need {' or '.join(map(str, kinds))}"
            f"{list(expected)}: check the block size that the checkpoint's config states."
        )


def dequantize(
    weight: np.ndarray,
    scale: np.ndarray,
    dtype: np.dtype,
    *,
    fp8_block: tuple[int, int] = FP8_BLOCK,
) -> np.ndarray:
    """A weight in the given dtype: a float32 product, rounded once more if dtype is narrower.

    With e8m0 scales the product is exact, unless it leaves float32's range; NaN codes stay NaN.

    Args:
        weight: e4m3 [R, C] or packed fp4 int8 [R, C / 2].
        scale: one for each block, the last ones cut off at the edge: [ceil(R / rows of a block),
            ceil(C / columns)], e8m0 or (fp8 only) float32.
        dtype: of the result, [R, C].
        fp8_block: rows and columns that share a scale in fp8.

    Raises:
        ValueError: if weight or scale has another dtype, or the scales are not one a block.
    """
    check_scale(weight, scale, fp8_block=fp8_block)
    block = fp8_block
    if weight.dtype == E4M3:
        values = weight.astype(np.float32)
    else:
        block = FP4_BLOCK
        values = _FP4_PAIRS[weight.view(np.uint8)].reshape(*weight.shape[:-1], -1)
    with np.errstate(over="ignore"):  # to infinity, as the product of the two numbers
        values *= _spread(scale.astype(np.float32), block, values.shape)
        return values.astype(dtype, copy=False)


def quantize_fp8(
    values: np.ndarray,
    *,
    block: tuple[int, int] = FP8_BLOCK,
    scale_dtype: np.dtype = E8M0,
) -> tuple[np.ndarray, np.ndarray]:
    """Nearest e4m3 codes [R, C] of real values [R, C], and the scales that make blocks fit."""
    scale = _scales(values, block, E4M3, scale_dtype)
    return _codes(values, scale, block, E4M3), scale


def quantize_fp4(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest packed fp4 codes, int8 [R, C / 2], of real values [R, C], and e8m0 scales.

    Raises:
        ValueError: if C is odd.
    """
    if values.shape[-1] % 2:
        raise ValueError(
            f"values has shape {values.shape}, but fp4 packs pairs: pad its last axis."
        )
    scale = _scales(values, FP4_BLOCK, E2M1, E8M0)
    codes = _codes(values, scale, FP4_BLOCK, E2M1).view(np.uint8)
    return (codes[:, ::2] | codes[:, 1::2] << 4).view(PACKED), scale


def _spread(scale: np.ndarray, block: tuple[int, int], shape: tuple[int, ...]) -> np.ndarray:
    """Each block's scale at each of its values; the last blocks may be cut off."""
    rows, columns = shape
    return np.repeat(np.repeat(scale, block[1], 1)[:, :columns], block[0], 0)[:rows]


def _scales(
    values: np.ndarray, block: tuple[int, int], code: np.dtype, dtype: np.dtype
) -> np.ndarray:
    """Smallest scale, a power of two if e8m0, with which no value of a block overflows."""
    rows, columns = (np.arange(0, n, b) for n, b in zip(values.shape, block, strict=True))
    largest = np.maximum.reduceat(np.abs(values.astype(np.float64)), rows, 0)
    largest = np.maximum.reduceat(largest, columns, 1) / float(ml_dtypes.finfo(code).max)
    if dtype == E8M0:
        mantissa, exponent = np.frexp(largest)  # in [0.5, 1), so log2 is whole at 0.5 only
        largest = np.ldexp(1.0, np.clip(exponent - (mantissa == 0.5), -127, 127))
    return np.where(largest > 0, largest, 1.0).astype(dtype)


def _codes(
    values: np.ndarray, scale: np.ndarray, block: tuple[int, int], code: np.dtype
) -> np.ndarray:
    scaled = values.astype(np.float32) / _spread(scale.astype(np.float32), block, values.shape)
    return scaled.astype(code)
