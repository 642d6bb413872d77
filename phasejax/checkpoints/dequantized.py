# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Stored tensors as real numbers: a quantised weight and its scale are one tensor."""

from collections.abc import Collection, Iterator

import numpy as np

from phasejax.checkpoints.quantization import FP8_BLOCK, PACKED, dequantize, is_quantized
from phasejax.checkpoints.shards import Shards


class Dequantized(Collection[str]):
    """Names of tensors, each computed from the files when it is read.

    `X.scale` belongs to `X.weight` if that one is quantised, and is then no name of its own.

    Args:
        shards: the files.
        fp8_block: rows and columns that share a scale in fp8.

    Raises:
        ValueError: naming a quantised weight without scale, or a scale beside a weight that needs
            none.
    """

    def __init__(self, shards: Shards, *, fp8_block: tuple[int, int] = FP8_BLOCK):
        self._shards, self._fp8_block = shards, fp8_block
        self._scales: dict[str, str] = {}
        for name in shards:
            scale = f"{name.removesuffix('.weight')}.scale"
            needs, has = is_quantized(shards.info(name).dtype), scale in shards
            if needs and not has:
                raise ValueError(
                    f"Tensor {name!r} is {shards.info(name).dtype} and {scale!r} is missing: fetch"
                    " the checkpoint again."
                )
            if has and not needs:
                raise ValueError(
                    f"Tensor {scale!r} is there, but {name!r} is {shards.info(name).dtype} and"
                    " needs no scale: delete one of the two."
                )
            if has:
                self._scales[name] = scale
        used = set(self._scales.values())
        self._names = dict.fromkeys(name for name in shards if name not in used)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape that reading the tensor will give, without reading it."""
        info = self._shards.info(name)
        if info.dtype == PACKED:
            return (*info.shape[:-1], 2 * info.shape[-1])
        return info.shape

    def read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """A tensor in the given dtype.

        Raises:
            KeyError: if there is no such tensor.
            ValueError: naming the tensor if its scales are not one a block, or if one of dtype and
                stored dtype is an integer and the other is not.
        """
        if name not in self._names:
            raise KeyError(name)
        weight = self._shards[name]
        if name in self._scales:
            scale = self._shards[self._scales[name]]
            try:
                return dequantize(weight, scale, dtype, fp8_block=self._fp8_block)
            except ValueError as error:
                raise ValueError(f"Tensor {name!r}: {error}") from error
        if np.issubdtype(weight.dtype, np.integer) != np.issubdtype(dtype, np.integer):
            raise ValueError(
                f"Tensor {name!r} is {weight.dtype}, but the model keeps {dtype} there: fetch the"
                " checkpoint again."
            )
        return weight.astype(dtype, copy=False)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
