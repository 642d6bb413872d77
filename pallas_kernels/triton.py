# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the kernels for NVIDIA GPUs share: how Triton is called, and what it can hold.

Kernels get whole arrays in the GPU's memory and cut tiles by indexing. Tiles are powers of two, and
16 at least along every axis of a matrix product.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def check_dtypes(**operands: Array) -> None:
    """Leaves operands of other dtypes to other implementations.

    Raises:
        NotImplementedError: naming the first operand that Triton has no products for.
    """
    for name, x in operands.items():
        if x.dtype not in DTYPES:
            raise NotImplementedError(f"{name}.dtype={x.dtype} is not one that Triton multiplies.")


def check_head_dim(head_dim: int) -> None:
    """Leaves heads that are no tile to other implementations.

    Raises:
        NotImplementedError: unless it is a power of two and 16 at least.
    """
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise NotImplementedError(f"H={head_dim} is no power of two from 16 on, as tiles are.")


def row(x: Any, b: Array) -> Array | int:
    """Index of row b of the batch in an array that may have one row for all of them."""
    return b if x.shape[0] > 1 else 0


def dot(x: Array, y: Array, contract: tuple[int, int]) -> Array:
    """Product of two tiles in float32; `contract` is the axis of each that is summed."""
    return jax.lax.dot_general(
        x,
        y,
        (((contract[0],), (contract[1],)), ((), ())),
        precision="highest" if y.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def call(
    kernel: Callable[..., None],
    operands: tuple[Any, ...],
    out_shape: Any,
    *,
    grid: tuple[int, ...],
    flops: int,
    exponentials: int,
    warps: int = 4,
    stages: int = 2,
    interpret: Any,
) -> Any:
    """Runs a kernel over a grid; the cost is counted for XLA, every array read or written once."""
    arrays = jax.tree.leaves((operands, out_shape))
    return pl.pallas_call(
        kernel,
        out_shape=out_shape,
        grid=grid,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
        cost_estimate=pl.CostEstimate(
            flops=flops,
            transcendentals=exponentials,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in arrays),
        ),
        interpret=interpret,
    )(*operands)
