# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Stored tensors in one real dtype: a quantised weight and its scale are one tensor."""

from collections.abc import Iterator, Mapping

import numpy as np

from phasejax.checkpoints.quantization import FP8_BLOCK, PACKED, dequantize, is_quantized
from phasejax.checkpoints.shards import Shards


class Dequantized(Mapping[str, np.ndarray]):
    """Tensors by name, each computed from the files when it is asked for.

    `X.scale` belongs to `X.weight` if that one is quantised, and is then no name of its own.
    Integers, such as a table of expert ids, stay as they are.

    Args:
        shards: the files.
        dtype: of every real tensor.
        fp8_block: rows and columns that share a scale in fp8.

    Raises:
        ValueError: when opened, naming a quantised weight without scale or a scale beside a weight
            that needs none; when read, naming a weight whose scales are not one a block.
    """

    def __init__(self, shards: Shards, dtype: np.dtype, *, fp8_block: tuple[int, int] = FP8_BLOCK):
        self._shards, self._dtype, self._fp8_block = shards, np.dtype(dtype), fp8_block
        self._scales: dict[str, str] = {}
        for name in shards:
            scale = _scale_of(name)
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

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        weight = self._shards[name]
        if name in self._scales:
            scale = self._shards[self._scales[name]]
            try:
                return dequantize(weight, scale, self._dtype, fp8_block=self._fp8_block)
            except ValueError as error:
                raise ValueError(f"Tensor {name!r}: {error}") from error
        if np.issubdtype(weight.dtype, np.integer):
            return weight
        return weight.astype(self._dtype, copy=False)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _scale_of(name: str) -> str:
    return f"{name.removesuffix('.weight')}.scale"
