# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""One safetensors file: its header checked when opened, its tensors read one at a time.

The package `safetensors` checks the header, but has no fp8 in numpy: the bytes are read here.
Format: 8 bytes N, little endian; N bytes of JSON with dtype, shape and offsets; then the data.
"""

import dataclasses
import json
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

# The format's name of each dtype that a checkpoint may hold.
DTYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "F64": np.float64,
        "F32": np.float32,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "I64": np.int64,
        "I32": np.int32,
        "I8": np.int8,
        "U8": np.uint8,
    }.items()
}


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor: its file, dtype, shape and first byte."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of a file by name; reads no data.

    Raises:
        ValueError: naming the file if it is missing, truncated or no safetensors file, or the
            tensor if its dtype is not one of `DTYPES`.
    """
    try:
        with safe_open(path, framework="numpy"):
            pass  # opening checks sizes, and that the offsets cover the file exactly
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is missing, truncated or no safetensors file ({error}): fetch it again."
        ) from error
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise ValueError(
                f"Tensor {name!r} of {path} has dtype {entry['dtype']}, but a checkpoint may hold"
                f" {', '.join(DTYPES)}: convert it."
            )
    return {
        name: TensorInfo(
            path,
            DTYPES[entry["dtype"]],
            tuple(entry["shape"]),
            8 + length + entry["data_offsets"][0],
        )
        for name, entry in header.items()
    }


def read_tensor(info: TensorInfo) -> np.ndarray:
    """One tensor as it is stored, in memory of its own: nothing else of the file is loaded.

    Raises:
        ValueError: if the file has become shorter since its header was read.
    """
    with info.path.open("rb") as file:
        file.seek(info.offset)
        data = np.fromfile(file, np.uint8, info.nbytes)
    if data.size != info.nbytes:
        raise ValueError(f"{info.path} became shorter while it was read: fetch it again.")
    return data.view(info.dtype).reshape(info.shape)
