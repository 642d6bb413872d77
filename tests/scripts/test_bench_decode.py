# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of decoding, on few tokens and without its peer."""

import json
from pathlib import Path

import pytest

from scripts import bench_decode

STORED = json.loads(
    (Path(__file__).parents[2] / "docs/results/bench_decode.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def model():
    return bench_decode.qwen3(attention="compressed", window=8)


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    for name, value in {"BATCHES": (2,), "PROMPT": 16, "NEW": 3, "CHUNK": 8}.items():
        monkeypatch.setattr(bench_decode, name, value)


def test_rates_of_prefill_and_decoding(model):
    (row,) = bench_decode.speed(model, None, 3)
    assert (row["batch"], row["prompt"], row["new"]) == (2, 16, 3)
    rates = row["tokens_per_second"]
    assert rates["prefill"] > 0 and rates["step"] > 0
    assert rates.keys() == STORED["speed"][0]["tokens_per_second"].keys()


def test_bytes_of_a_cache_by_part(model):
    """One entry of 16 float32 channels every 8 tokens, in both of 2 layers."""
    found = bench_decode.cache_bytes(model)
    assert found["per_token"]["far.key"] == 2 * 16 * 4 / 8
    assert found == STORED["cache_bytes"]["qwen3_w8s8"]


def test_a_step_compiles_once_however_long_the_context(model):
    rows = bench_decode.growth("qwen3_w8s8", model, [8, 20], 2)
    assert [row["context"] for row in rows] == [8, 20]
    assert [row["entries"] for row in rows] == [2, 4]
    assert [row["recompiled"] for row in rows] == [0, 0]
    assert rows[0].keys() == STORED["growth"]["qwen3_w8s8"][0].keys()


def test_what_is_stored_holds_what_the_documents_say():
    assert all(row["speedup"][name] >= 3 for row in STORED["speed"] for name in ("decode", "step"))
    assert all(row["same_tokens"] == 1 for row in STORED["speed"])
    assert not any(row["recompiled"] for rows in STORED["growth"].values() for row in rows)
