# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which exact tokens a query reads; the masks themselves are built where attention is computed."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LocalSpan:
    """Which exact (uncompressed) tokens a query reads.

    Attributes:
        size: the most recent tokens, the query's own included; None means all of them.
        tail_only: keep only those that no visible entry covers: the current incomplete window.
    """

    size: int | None
    tail_only: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(
                f"size={self.size}: a query reads at least its own token, so size >= 1."
            )
