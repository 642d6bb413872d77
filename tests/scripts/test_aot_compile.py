# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compiling kernels ahead of time: what is tried, what is read, and what becomes of failures."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts import aot_compile
from scripts.kernel_programs import DIRECTIONS, Program, function_of, programs

ROOT = Path(__file__).parents[2]
TEXT = """
  %a = custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":
  %b = custom-call(%x), custom_call_target="Sharding", backend_config={"flops":"7"}
""".replace(
    '"custom_call_config":',
    '"custom_call_config":{"cost_estimate":{"flops":"40","transcendentals":"3","bytes_accessed":"9"'
    '}},"used_scoped_memory_configs":[{"memory_space":"1","offset":"0","size":"640"},'
    '{"memory_space":"3","offset":"0","size":"9999"}],"retry_config":{"retry_count":"0"}}',
)


def test_every_op_with_a_kernel_and_shapes_takes_part():
    folders = {
        path.parent.name
        for path in (ROOT / "pallas_kernels").glob("*/pallas_tpu.py")
        if (path.parent / "arg_specs.py").exists()
    }
    found = programs("pallas_tpu")
    assert {program.op for program in found} == folders >= {"index_topk", "ragged_pool"}
    assert {program.direction for program in found} == set(DIRECTIONS)


@pytest.mark.parametrize("op", ["ragged_pool", "index_topk"])
def test_backward_takes_cotangents_and_gives_a_gradient_of_every_real_operand(op):
    import jax

    program = next(p for p in programs("pallas_tpu") if p.op == op and p.direction == "backward")
    function, (cotangents, *operands) = function_of(program, "reference")
    real = [x for x in jax.tree.leaves(operands) if x.dtype in ("bfloat16", "float32")]
    gradients = jax.eval_shape(function, cotangents, *operands)
    assert [(x.shape, x.dtype) for x in gradients] == [(x.shape, x.dtype) for x in real]
    assert len(cotangents) == 1


def test_facts_are_those_of_the_kernels():
    facts = aot_compile.kernel_facts(TEXT + TEXT.replace('"size":"640"', '"size":"650"'))
    assert facts == {"kernels": 2, "vmem_bytes": 650, "flops": 80, "bytes": 18}


def test_rows_are_kept_unless_they_are_made_again():
    known = programs("pallas_tpu")[0]
    row = {"device": "v5p", "op": known.op, "shape": known.shape, "direction": known.direction}
    gone = row | {"op": "an op of the past"}
    other = row | {"device": "v5e", "compile_seconds": 1}
    rows = aot_compile.merged([row | {"error": "old"}, gone, other], [row | {"vmem_bytes": 2}])
    assert rows == [other, row | {"vmem_bytes": 2}]


def test_the_stored_table_is_complete_and_its_page_is_of_the_same_rows():
    stored = json.loads((ROOT / "docs/results/aot_tpu.json").read_text())
    assert (ROOT / "docs/results/aot_tpu.md").read_text() == aot_compile.as_markdown(stored)
    keys = [aot_compile._key(row) for row in stored["rows"]]
    assert len(set(keys)) == len(keys)
    wanted = {
        (device, p.op, p.shape, p.direction)
        for device in aot_compile.TOPOLOGIES
        for p in programs("pallas_tpu")
    }
    assert wanted == set(keys), "run `make aot`"


def test_a_name_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="--devices=v9 is none of v5e, v5p"):
        aot_compile.check_names("devices", ["v9"], list(aot_compile.TOPOLOGIES))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra aot")
def test_a_kernel_compiles(monkeypatch):
    for name, value in aot_compile.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    program = Program("ragged_pool", "qwen3_0_6b_4k", "forward")
    rows = []
    aot_compile.aot_compile([(program, "v5e")], 200, rows.append)
    (row,) = rows
    assert row["kernels"] == 1 and 0 < row["vmem_bytes"] < 2**24
