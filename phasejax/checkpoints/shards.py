# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A directory of safetensors as one read-only mapping from tensor names to arrays.

Headers are read and compared with the index when the directory is opened; a tensor is read when
it is asked for, alone, so that memory holds what the caller keeps and never a whole shard.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from phasejax.checkpoints.safetensors_file import TensorInfo, read_header, read_tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Shards(Mapping[str, np.ndarray]):
    """The tensors of a Hugging Face directory, in the order of the index or of the file.

    Args:
        directory: holds model.safetensors.index.json and the shards that it names, or one
            safetensors file alone. Files that the index does not name are not looked at.

    Raises:
        ValueError: naming what is wrong: no checkpoint there, an index that is damaged, a shard
            that is missing or damaged, a tensor that the index places in a shard without it, or
            one that a shard holds and the index does not place there.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)
        index = self.directory / INDEX
        if index.is_file():
            self._tensors = _indexed(index)
        else:
            self._tensors = read_header(_only_file(self.directory))

    def info(self, name: str) -> TensorInfo:
        """Dtype, shape and place of a tensor, without reading it; KeyError if there is none."""
        return self._tensors[name]

    def __getitem__(self, name: str) -> np.ndarray:
        return read_tensor(self._tensors[name])

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # the inherited one would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _only_file(directory: Path) -> Path:
    found = sorted(directory.glob("*.safetensors"))
    if directory / SINGLE in found or len(found) == 1:
        return directory / SINGLE if directory / SINGLE in found else found[0]
    raise ValueError(
        f"{directory} holds {len(found)} safetensors files and no {INDEX}, but a checkpoint is one"
        " file, or several and their index: fetch what is missing, or check the path."
    )


def _weight_map(index: Path) -> dict[str, str]:
    """Which file holds each tensor, as the index says; its `total_size` is often wrong: unread."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = set(weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{index} has no readable weight_map ({error}): fetch it again."
        ) from error
    for file in files:
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(
                f"{index} names the shard {file!r}, but a shard lies beside its index: mend it."
            )
    return weight_map


def _indexed(index: Path) -> dict[str, TensorInfo]:
    weight_map = _weight_map(index)
    headers = {
        file: read_header(index.with_name(file)) for file in sorted(set(weight_map.values()))
    }
    for name, file in weight_map.items():
        if name not in headers[file]:
            raise ValueError(
                f"{index} places tensor {name!r} in {file}, which does not hold it: fetch both"
                " again."
            )
    for file, header in headers.items():
        for name in header:
            if weight_map.get(name) != file:
                raise ValueError(
                    f"{file} holds tensor {name!r}, which {index} places in"
                    f" {weight_map.get(name, 'no shard')}: fetch both again."
                )
    return {name: headers[file][name] for name, file in weight_map.items()}
