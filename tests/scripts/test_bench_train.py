# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of the training step compares."""

from phasejax.models import attention
from scripts.bench_train import _in_turns, _with_dense_attention


def test_dense_attention_is_the_reference_and_stays_no_longer_than_asked():
    before = attention.compressed_attention
    used = _with_dense_attention(lambda x: (x, attention.compressed_attention.keywords), 1)
    assert used == (1, {"implementation": "reference"})
    assert attention.compressed_attention is before


def test_calls_take_turns():
    called = []
    times = _in_turns([lambda n=n: called.append(n) for n in "ab"], 3)
    assert called == ["a", "a", "b", "b"] * 3  # each once before it is timed
    assert len(times) == 2 and all(t >= 0 for t in times)
