# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing tensors as a Hugging Face directory: shards of a given size, and their index."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, TensorSpec, serialize_file

from phasejax.checkpoints.safetensors_file import DTYPES
from phasejax.checkpoints.shards import INDEX, SINGLE
from phasejax.files import write_atomic, write_error
from phasejax.validation import check_count

SHARD_BYTES = 5 * 10**9
UNFINISHED = ".writing-"


def write_shards(
    directory: str | os.PathLike,
    tensors: Iterable[tuple[str, Any]],
    *,
    max_bytes: int = SHARD_BYTES,
    needed: int = 0,
) -> None:
    """Writes named arrays; one shard is model.safetensors, several get an index.

    Memory holds at most one shard and the next tensor. The directory shows nothing until all is
    written, and the index comes last.

    Args:
        directory: made if needed; must hold no safetensors yet.
        tensors: names and arrays (numpy or JAX), drawn one by one; each of a dtype of `DTYPES`.
        max_bytes: size of a shard, passed only by a tensor that is larger by itself.
        needed: bytes that have to be free, if that is known.

    Raises:
        ValueError: for a directory that cannot be made or holds safetensors already, or what a
            process left that was killed while it wrote; too little room, a name that comes twice, a
            dtype that is not in `DTYPES`, or no tensor at all.
        OSError: if a shard could not be written.
    """
    directory = Path(directory)
    check_count("max_bytes", max_bytes, 1)
    _prepare(directory, needed)
    with tempfile.TemporaryDirectory(dir=directory, prefix=UNFINISHED) as temporary:
        shards = []
        for shard in _split(tensors, max_bytes):
            _write(Path(temporary) / str(len(shards)), shard)
            shards.append({name: array.nbytes for name, array in shard.items()})
            shard.clear()  # else this loop would hold it while the next one is drawn
        if not shards:
            raise ValueError("tensors is empty, but a checkpoint holds at least one: pass some.")
        names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        names = names if len(shards) > 1 else [SINGLE]
        for i, name in enumerate(names):
            os.replace(Path(temporary) / str(i), directory / name)
    if len(shards) > 1:
        pairs = list(zip(names, shards, strict=True))
        index = {
            "metadata": {"total_size": sum(sum(sizes.values()) for sizes in shards)},
            "weight_map": {name: file for file, sizes in pairs for name in sizes},
        }
        write_atomic(directory / INDEX, json.dumps(index, indent=2) + "\n")


def _prepare(directory: Path, needed: int) -> None:
    if error := write_error(directory):
        raise ValueError(
            f"directory={str(directory)!r} is none that can be written to ({error.strerror}): move"
            " what is there, or choose another."
        ) from error
    if present := sorted(p.name for p in directory.glob("*.safetensors*")):
        raise ValueError(
            f"directory={str(directory)!r} holds {present[0]} already: write to an empty one."
        )
    if left := sorted(p.name for p in directory.glob(f"{UNFINISHED}*")):
        raise ValueError(
            f"directory={str(directory)!r} holds {left[0]}, which a process makes while it writes:"
            " wait for it, or delete that if it was killed."
        )
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ValueError(
            f"directory={str(directory)!r} has room for {free / 1e9:.3g} GB, but {needed / 1e9:.3g}"
            " GB are to be written: make room, or choose another."
        )


def _split(tensors: Iterable[tuple[str, Any]], max_bytes: int) -> Iterable[dict[str, np.ndarray]]:
    seen, shard = set(), {}
    for name, tensor in tensors:
        array = np.asarray(tensor, order="C")
        if name in seen:
            raise ValueError(f"Tensor {name!r} comes twice, but names are unique: drop one.")
        if array.dtype not in DTYPES.values():
            raise ValueError(
                f"Tensor {name!r} has dtype {array.dtype}, but a checkpoint may hold"
                f" {', '.join(str(d) for d in DTYPES.values())}: convert it."
            )
        if shard and sum(a.nbytes for a in shard.values()) + array.nbytes > max_bytes:
            yield shard
            shard = {}
        seen.add(name)
        shard[name] = array
    if shard:
        yield shard


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    specs = {
        name: TensorSpec(
            dtype=array.dtype.name,
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in arrays.items()
    }
    # Readers of transformers ask for this entry.
    try:
        serialize_file(specs, path, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, for one
        raise OSError(
            f"{path.parent.parent} could not be written to ({error}): make room, or choose another."
        ) from error
