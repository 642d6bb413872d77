# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Models from Hugging Face directories, and back.

Never run on the real weights of DeepSeek-V4: tested with small synthetic checkpoints in the
released format, and with what transformers 5.23 writes.
"""

import dataclasses
import gc
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx

from phasejax.checkpoints import deepseek_v4_tensors as v4
from phasejax.checkpoints.deepseek_v4_config import fp8_block, read_config, write_config
from phasejax.checkpoints.deepseek_v4_names import Layout, check_layout, tensor_name
from phasejax.checkpoints.dequantized import Dequantized
from phasejax.checkpoints.shard_writer import SHARD_BYTES, write_shards
from phasejax.checkpoints.shards import Shards
from phasejax.files import write_atomic
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.decoder import DeepseekV4

CONFIG = "config.json"
DTYPES = ("float32", "bfloat16", "float16")
Placement = Callable[[v4.Path, tuple[int, ...]], jax.sharding.Sharding]


def from_hf(
    directory: str | os.PathLike,
    dtype: str = "float32",
    *,
    placement: Placement | None = None,
    clamp_shared: bool | None = None,
    quantized: bool = False,
    rotary_dtype: Literal["float32", "compute"] = "float32",
) -> DeepseekV4:
    """A DeepSeek-V4 decoder with the weights of a directory; its draft layers are left out.

    All names and shapes are compared before a weight is read. The host holds the tensors of one
    parameter at a time, of which the largest is a layer's stack of experts; with a placement that
    splits the stack, one device's part of it.

    Args:
        directory: config.json and safetensors, in the released spelling or in that of transformers.
        dtype: of matrices and products; what the model keeps in float32 stays so.
        placement: where a parameter lies, from its path and shape; None is the default device.
        clamp_shared: see `DeepseekV4Config`; by default as the code does that the spelling belongs
            to: transformers clamps, DeepSeek's own does not.
        quantized: see `DeepseekV4Config`.
        rotary_dtype: see `DeepseekV4Config`.

    Raises:
        ValueError: naming what is wrong: no config.json, a model other than DeepSeek-V4 (V4.1
            included), a tensor that is missing, surplus, damaged or of another shape.
    """
    config, tensors, layout = _open(Path(directory), dtype)
    config = dataclasses.replace(
        config,
        clamp_shared=layout == "transformers" if clamp_shared is None else clamp_shared,
        quantized=quantized,
        rotary_dtype=rotary_dtype,
    )
    graph, leaves = v4.structure(config)
    parts = [v4.stored(path, leaf.shape, layout) for path, leaf in leaves]
    v4.check(tensors, parts, _dtypes(leaves), config.num_experts)
    loaded = [
        (path, leaf.replace(_load(tensors, part, leaf, path, placement)))
        for (path, leaf), part in zip(leaves, parts, strict=True)
    ]
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def to_hf(
    model: DeepseekV4,
    directory: str | os.PathLike,
    *,
    layout: Layout = "released",
    max_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a model as a directory that `from_hf` and transformers read; nothing is quantised.

    The released spelling keeps norms in the dtype of matrices, so those of a model that was trained
    with matrices of bfloat16 are rounded; transformers' spelling keeps them in float32.

    Args:
        model: what to write; its arrays are fetched one at a time.
        directory: made if needed; must hold no checkpoint yet.
        layout: names of the tensors.
        max_bytes: size of a shard.

    Raises:
        ValueError: if the directory holds a checkpoint or has no room for this one, or the model
            has what only V4.1 has.
        OSError: if it could not be written; `from_hf` reads nothing of what was left off.
    """
    if not isinstance(model, DeepseekV4):
        raise ValueError(
            f"model is a {type(model).__name__}, but a DeepseekV4 alone has such a directory: pass"
            " one."
        )
    check_layout(layout)
    leaves = list(nnx.to_flat_state(nnx.state(model)))

    def tensors() -> Iterable[tuple[str, np.ndarray]]:
        for path, leaf in leaves:
            array = np.asarray(leaf[...])
            part = v4.stored(path, array.shape, layout)
            rows = array if part.stacked else array.reshape(1, *part.shape)
            for name, row in zip(part.names, rows, strict=True):
                yield name, row.astype(v4.export_dtype(name, row.dtype, model.config, layout))

    needed = _bytes(leaves, model.config, layout)
    _write(tensors(), model.config, directory, max_bytes, needed)


def convert_hf(
    source: str | os.PathLike,
    directory: str | os.PathLike,
    dtype: str = "float32",
    *,
    layout: Layout = "released",
    max_bytes: int = SHARD_BYTES,
) -> None:
    """What `to_hf` would write of the model that `from_hf` reads, tensor by tensor.

    Never holds the model: memory is a shard and a tensor. Draft layers are left out.

    Args:
        source: as the directory of `from_hf`.
        directory: as that of `to_hf`.
        dtype: of matrices.
        layout: names of the tensors that are written.
        max_bytes: size of a shard.

    Raises:
        ValueError, OSError: as `from_hf` and `to_hf`.
    """
    check_layout(layout)
    config, tensors, old = _open(Path(source), dtype)
    leaves = v4.structure(config)[1]
    parts = [v4.stored(path, leaf.shape, old) for path, leaf in leaves]
    v4.check(tensors, parts, _dtypes(leaves), config.num_experts)

    def renamed() -> Iterable[tuple[str, np.ndarray]]:
        for (path, leaf), part in zip(leaves, parts, strict=True):
            new = v4.stored(path, leaf.shape, layout)
            for before, after in zip(part.names, new.names, strict=True):
                array = tensors.read(before, np.dtype(leaf.dtype))
                yield after, array.astype(v4.export_dtype(after, array.dtype, config, layout))

    _write(renamed(), config, directory, max_bytes, _bytes(leaves, config, layout))


def _open(directory: Path, dtype: str) -> tuple[DeepseekV4Config, Dequantized, Layout]:
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is none of {', '.join(DTYPES)}: choose one.")
    path = directory / CONFIG
    try:
        text = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): fetch it, or check the path."
        ) from error
    config = read_config(text, param_dtype=dtype, compute_dtype=dtype)
    tensors = Dequantized(Shards(directory), fp8_block=fp8_block(text))
    return config, tensors, v4.layout_of(tensors)


def _dtypes(leaves: list[tuple[v4.Path, Any]]) -> list[np.dtype]:
    return [np.dtype(leaf.dtype) for _, leaf in leaves]


def _bytes(leaves: list[tuple[v4.Path, Any]], config: DeepseekV4Config, layout: Layout) -> int:
    """Bytes of all tensors that will be written."""
    total = 0
    for (path, leaf), dtype in zip(leaves, _dtypes(leaves), strict=True):
        written = v4.export_dtype(tensor_name(path, layout), dtype, config, layout)
        total += math.prod(leaf.shape) * written.itemsize
    return total


def _load(
    tensors: Dequantized, part: v4.Stored, leaf: Any, path: v4.Path, placement: Placement | None
) -> jax.Array:
    """One parameter on its devices."""
    dtype = np.dtype(leaf.dtype)

    def stack(index: Any) -> np.ndarray:
        """The piece that a device needs, by a slice of each axis, read row by row."""
        names = part.names[index[0]]
        first = tensors.read(names[0], dtype)[index[1:]]
        piece = np.empty((len(names), *first.shape), dtype)
        piece[0] = first
        for row, name in enumerate(names[1:], 1):
            piece[row] = tensors.read(name, dtype)[index[1:]]
        return piece

    if part.stacked:
        read = stack
    else:
        read = tensors.read(part.names[0], dtype).reshape(leaf.shape).__getitem__
    if placement is None:  # copied, so that the host's array can be freed
        array = jax.device_put(read((slice(None),) * len(leaf.shape)), may_alias=False)
    else:
        array = jax.make_array_from_callback(leaf.shape, placement(path, leaf.shape), read)
    # The host's array lives until it is copied, and until JAX, which clears up when Python collects
    # garbage, lets go of it.
    array.block_until_ready()
    gc.collect(0)
    return array


def _write(
    tensors: Iterable[tuple[str, np.ndarray]],
    config: DeepseekV4Config,
    directory: str | os.PathLike,
    max_bytes: int,
    needed: int,
) -> None:
    text = write_config(config)  # first: a model that has no config.json is not written
    if (Path(directory) / CONFIG).exists():
        raise ValueError(
            f"directory={str(directory)!r} holds {CONFIG} already: write to an empty one."
        )
    write_shards(directory, tensors, max_bytes=max_bytes, needed=needed)
    write_atomic(Path(directory) / CONFIG, json.dumps(text, indent=2) + "\n")
