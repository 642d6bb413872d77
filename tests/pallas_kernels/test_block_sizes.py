# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of what devices hold."""

from pathlib import Path

import jax
import pytest

import pallas_kernels
from pallas_kernels import block_sizes
from pallas_kernels.index_topk.config import blocked_heuristic


@pytest.fixture
def table(monkeypatch):
    """A table in the place of the stored one."""
    block_sizes.sizes_of.cache_clear()
    numbers = {
        "gpu": {"op": {"tile": 64, "length": 16}, "other": {"tile": 1}},
        "NVIDIA X": {"op": {"tile": 128}},
    }
    monkeypatch.setattr(block_sizes, "_table", lambda: numbers)
    yield numbers
    block_sizes.sizes_of.cache_clear()


def test_a_device_says_only_what_differs(table):
    assert block_sizes.sizes_of("op", "gpu", None) == {"tile": 64, "length": 16}
    assert block_sizes.sizes_of("op", "gpu", "NVIDIA X") == {"tile": 128, "length": 16}
    assert block_sizes.sizes_of("op", "gpu", "NVIDIA Y") == {"tile": 64, "length": 16}
    assert block_sizes.sizes_of("other", "gpu", "NVIDIA X") == {"tile": 1}
    with pytest.raises(ValueError, match=r"op='third'.*knows \['op', 'other'\] on gpu"):
        block_sizes.sizes_of("third", "gpu", None)


def test_numbers_cannot_be_changed_by_a_caller():
    with pytest.raises(TypeError):
        block_sizes.block_sizes("index_topk", "xla")["scores"] = 1


def test_the_device_here_counts_on_its_own_platform_and_in_plain_jax(table):
    table["cpu"] = table["xla"] = {"op": {"tile": 2}}
    table[jax.devices()[0].device_kind] = {"op": {"tile": 5}}
    assert block_sizes.block_sizes("op", "gpu")["tile"] == 64
    assert block_sizes.block_sizes("op", "xla")["tile"] == 5


def test_the_stored_table_is_of_ops_and_is_read_once():
    block_sizes._table.cache_clear()
    stored = block_sizes._table()
    assert block_sizes._table() is stored
    folders = {p.name for p in Path(pallas_kernels.__path__[0]).iterdir() if p.is_dir()}
    for ops in stored.values():
        assert set(ops) <= folders
        assert all(type(n) is int and n > 0 for sizes in ops.values() for n in sizes.values())


def test_tiles_are_a_function_of_shapes_and_the_table(table):
    table["xla"] = {"index_topk": {"scores": 2**14, "query": 8}}
    blocks = blocked_heuristic((1, 64, 2, 16), 512, 16)
    assert blocks == blocked_heuristic((1, 64, 2, 16), 512, 16)
    assert blocks.query == 8
    assert blocks.query * blocks.entry * 2 <= 2**14
