# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Rewrites a DeepSeek-V4 checkpoint without quantisation, in one spelling or the other.

    python -m scripts.convert_checkpoint --source=DeepSeek-V4-Flash --destination=flash-bf16

Reads the released formats (fp8 and fp4 with scales) and what transformers writes, checks every name
and shape first, and needs the memory of one shard. Draft layers are left out.
"""

from typing import Any, cast

from absl import flags

from scripts import running

_SOURCE = flags.DEFINE_string("source", None, "Folder of the checkpoint.", required=True)
_DESTINATION = flags.DEFINE_string("destination", None, "Folder to write.", required=True)
_DTYPE = flags.DEFINE_enum(
    "dtype", "bfloat16", ("float32", "bfloat16", "float16"), "Dtype of matrices."
)
_LAYOUT = flags.DEFINE_enum(
    "layout", "released", ("released", "transformers"), "Spelling of the names that are written."
)
_SHARD_GB = flags.DEFINE_float("shard_gb", 5.0, "Size of a shard in 10^9 bytes.", lower_bound=1e-6)


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    from phasejax.checkpoints import convert_hf

    convert_hf(
        _SOURCE.value,
        _DESTINATION.value,
        _DTYPE.value,
        layout=cast(Any, _LAYOUT.value),  # absl-py has seen that it is one of them
        max_bytes=int(_SHARD_GB.value * 1e9),
    )


if __name__ == "__main__":
    running.run(main, first="source")
