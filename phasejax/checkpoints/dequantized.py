# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Stored tensors as real numbers: a quantised weight and its scale are one tensor."""

from collections.abc import Collection, Iterator

import numpy as np

from phasejax.checkpoints.quantization import (
    E4M3,
    FP8_BLOCK,
    PACKED,
    check_scale,
    dequantize,
    is_quantized,
    real_shape,
)
from phasejax.checkpoints.shards import Shards


class Dequantized(Collection[str]):
    """Names of tensors, each computed from the files when it is read.

    `X.scale` belongs to `X.weight` if that one is quantised, and is then no name of its own.

    Args:
        shards: the files.
        fp8_block: rows and columns that share a scale in fp8.

    Raises:
        ValueError: naming a quantised weight without scale or with another's, or a scale beside a
            weight that needs none.
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
                    f"Tensor {scale!r} is there, but {name!r} is {shards.info(name).dtype}, and"
                    f" scales belong to {E4M3} and {PACKED} only: fetch the checkpoint again."
                )
            if has:
                self._check_scale(name, scale)
                self._scales[name] = scale
        used = set(self._scales.values())
        self._names = dict.fromkeys(name for name in shards if name not in used)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape that reading the tensor will give, without reading it."""
        return real_shape(self._shards.info(name))

    def _check_scale(self, name: str, scale: str) -> None:
        weight = self._shards.info(name)
        try:
            check_scale(weight, self._shards.info(scale), fp8_block=self._fp8_block)
        except ValueError as error:
            raise ValueError(f"Tensor {name!r}: {error}") from error

    def check_kind(self, name: str, dtype: np.dtype) -> None:
        """Refuses a tensor that cannot be read in this dtype; reads nothing.

        Raises:
            ValueError: naming it, if one of dtype and stored dtype is an integer's and the other is
                not.
        """
        stored = self._shards.info(name).dtype
        whole = np.issubdtype(stored, np.integer) and name not in self._scales
        if whole != np.issubdtype(dtype, np.integer):
            raise ValueError(
                f"Tensor {name!r} is {stored}, but the model keeps {dtype} there: fetch the"
                " checkpoint again."
            )

    def read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """A tensor in the given dtype.

        Raises:
            KeyError: if there is no such tensor.
            ValueError: see `check_kind`.
        """
        if name not in self._names:
            raise KeyError(name)
        self.check_kind(name, dtype)
        weight = self._shards[name]
        if name in self._scales:
            scale = self._shards[self._scales[name]]
            return dequantize(weight, scale, dtype, fp8_block=self._fp8_block)
        return weight.astype(dtype, copy=False)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
