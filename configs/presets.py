# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which runs `python -m scripts.reproduce --preset=NAME` makes: configuration files and seeds."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Preset:
    """Runs that are reported together.

    Attributes:
        names: files of configs/laptop, slowest first so that workers end together.
        seeds: every run is made once with each.
    """

    names: tuple[str, ...]
    seeds: tuple[int, ...]


QUICK = (
    "w12s12",
    "w8s8_uniform",
    "w8s8",
    "w8s8_no_rope",
    "w6s6",
    "full",
    "w8s4",
    "w4s4",
    "full_short",
    "w2s2",
)
MORE = (
    "w8s6",
    "w8s8_2kv",
    "w8s8_4kv",
    "w8s8_tied",
    "w8s8_vector",
    "w8s8_no_bias",
    "w8s8_no_qk_norm",
    "w8s8_rope_partial",
    "w8s8_uniform_tied_postnorm",
    "w8s8_tail",
    "w8s4_deepseek",
    "w8s4_deepseek_scalar",
    "w2s2_v41",
    "w2s2_long",
    "w8s4_long",
    "full_sep0",
    "full_sep3",
    "w8s8_sep0",
    "w8s8_sep1",
    "w8s8_sep2",
    "w8s8_sep3",
)
PRESETS = {
    "quick": Preset(QUICK, seeds=(0,)),
    "full": Preset(QUICK + MORE, seeds=(0, 1, 2)),
}
