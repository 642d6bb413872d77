# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which tokens feed which entry: windows of W tokens, one every S tokens.

Positions, offsets and entry indices are 0-based. Entry e covers the tokens e*S .. e*S + W - 1
(paper, section "Definitions"), and exists once its last token does.
"""

import dataclasses
from typing import Literal

import numpy as np

RotaryAnchor = Literal["window_start", "stride_start"]


@dataclasses.dataclass(frozen=True)
class WindowGeometry:
    """A grid of windows over the tokens of a prompt.

    Attributes:
        window: W, tokens that feed one entry.
        stride: S, tokens from one entry's start to the next one's.
        rotary_anchor: where RoPE places an entry: at its first token, e*S, or at the first token of
            its newest stride, e*S + W - S. The two agree where W = S. The paper does not say which;
            DeepSeek-V4 itself does the second.

    Raises:
        ValueError: unless 1 <= stride <= window.
    """

    window: int
    stride: int
    rotary_anchor: RotaryAnchor = "window_start"

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(
                f"stride={self.stride}, but a stride is at least 1 token: raise stride."
            )
        if self.window < self.stride:
            raise ValueError(
                f"window={self.window} is smaller than stride={self.stride}, so some tokens would"
                " feed no entry: set window >= stride."
            )

    def num_entries(self, num_tokens: int) -> int:
        """Entries whose whole window lies in the first num_tokens tokens."""
        return max(0, (num_tokens - self.window) // self.stride + 1)

    def start(self, num_entries: int) -> np.ndarray:
        """First token of each entry, int32 [E]."""
        return np.arange(num_entries, dtype=np.int32) * self.stride

    def end(self, num_entries: int) -> np.ndarray:
        """Last token of each entry, inclusive, int32 [E]."""
        return self.start(num_entries) + (self.window - 1)

    def position(self, num_entries: int) -> np.ndarray:
        """Rotary position of each entry, int32 [E]."""
        shift = self.window - self.stride if self.rotary_anchor == "stride_start" else 0
        return self.start(num_entries) + shift

    def phase(self, token: int | np.ndarray) -> int | np.ndarray:
        """Phase of a token: its position modulo the stride."""
        return token % self.stride

    def offsets(self, token: int) -> dict[int, int]:
        """The entries that a token feeds, each with the token's offset in its window."""
        first = max(0, -(-(token - self.window + 1) // self.stride))
        return {
            entry: token - entry * self.stride for entry in range(first, token // self.stride + 1)
        }

    def share_entry(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Whether some entry covers both tokens (first <= second), bool, elementwise.

        The last window that starts at or before `first` reaches furthest, so it decides.
        """
        last_start = (np.asarray(first) // self.stride) * self.stride
        return np.asarray(second) <= last_start + self.window - 1
