# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What each kind of device can hold, for the functions of shapes that choose tiles.

`block_sizes.json` has a table by platform, and one of "xla" for plain JAX. It may have one by kind
of device, as JAX names it ("TPU v5 lite", "NVIDIA H100 80GB HBM3"), which says only what differs.
The numbers of "xla" were measured on CPU; those of "tpu" are what compiles with room to spare
(docs/results/aot_tpu.md); those of "gpu" are arithmetic.
"""

import functools
import json
from pathlib import Path
from types import MappingProxyType

import jax

Sizes = MappingProxyType[str, int]


@functools.cache
def _table() -> dict[str, dict[str, dict[str, int]]]:
    return json.loads((Path(__file__).with_name("block_sizes.json")).read_text())


@functools.cache
def sizes_of(op: str, platform: str, kind: str | None) -> Sizes:
    """The numbers of an op on a platform, with those of one kind of device in their place.

    Raises:
        ValueError: if the table knows no such op there.
    """
    table = _table()
    if op not in table.get(platform, {}):
        known = sorted(table.get(platform, {}))
        raise ValueError(f"op={op!r}: block_sizes.json knows {known} on {platform}: add it there.")
    own = table.get(kind or "", {}).get(op, {})
    return MappingProxyType(table[platform][op] | own)


def block_sizes(op: str, platform: str) -> Sizes:
    """The numbers of an op for the device here, or for the platform's devices in general."""
    device = jax.devices()[0]
    is_here = platform in ("xla", device.platform)
    return sizes_of(op, platform, device.device_kind if is_here else None)
