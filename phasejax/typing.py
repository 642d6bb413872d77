# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""One legend of axis letters, and the array aliases built on it.

=====  ==========================================================================
B      batch of prompts
T      tokens of a prompt (positions are 0-based)
Q      query tokens: the positions at which an output is wanted, Q <= T
E      cache entries: one for each window of tokens
W      window: tokens that feed one entry (an axis); the stride S is never an axis
N      query heads
K      key-value heads
H      channels of one head
D      channels of the residual stream
V      vocabulary
M      residues of a token position, t mod M, M a multiple of every stride compared
=====  ==========================================================================
"""

from typing import Literal

from jaxtyping import Array, Bool, Float, Int

Tokens = Int[Array, "B T"]
Hidden = Float[Array, "B T D"]
Queries = Float[Array, "B Q N H"]
LocalKeys = Float[Array, "B T K H"]
Windows = Float[Array, "B E W D"]
Logits = Float[Array, "B Q V"]
DType = Literal["float32", "bfloat16", "float16"]  # as configs name them

__all__ = [
    "Array",
    "Bool",
    "DType",
    "Float",
    "Hidden",
    "Int",
    "LocalKeys",
    "Logits",
    "Queries",
    "Tokens",
    "Windows",
]
