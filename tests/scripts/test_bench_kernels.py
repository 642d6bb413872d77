# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of kernels: a trial of it, and what it does without a GPU."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ragged_pool import pallas_gpu, xla_blocked
from scripts import bench_gpu
from scripts.kernel_programs import Program, function_of, programs

ROOT = Path(__file__).parents[2]


def run(env, *flags):
    command = [sys.executable, "-m", "scripts.bench_kernels", *flags]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_a_trial_writes_what_the_full_run_writes(tmp_path, script_env):
    path = tmp_path / "numbers.json"
    done = run(script_env, "--shrink=64", "--repeats=1", f"--json={path}")
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    stored = json.loads((ROOT / "docs/results/attention_cpu.json").read_text())
    assert found.keys() == stored.keys()
    assert found["tokens_vs_dense"] * 64 == stored["tokens_vs_dense"]
    assert all(found[name] > 0 for name in ("speedup_vs_dense", "peak_memory_ratio_vs_dense"))
    lengths = [[row["tokens"] for row in x["doublings"]] for x in (found, stored)]
    assert [64 * n for n in lengths[0]] == lengths[1]


def test_without_a_gpu_it_says_so(script_env):
    done = run(script_env, "--device=gpu")
    assert done.returncode == 2
    assert "JAX runs on cpu here" in done.stderr and "Traceback" not in done.stderr


def small_pool(entries=4):
    operands = (
        jnp.asarray(np.random.default_rng(0).normal(size=(1, 32, 16)), jnp.float32),
        jnp.zeros((1, 32, 16), jnp.float32),
        jnp.arange(32)[None] // 8,
    )
    kernel = functools.partial(pallas_gpu.ragged_pool, entries=entries, interpret=True)
    return kernel, functools.partial(xla_blocked.ragged_pool, entries=entries), operands


def test_a_row_says_rates_shares_and_whether_values_agree():
    kernel, plain, operands = small_pool()
    limits = {"bytes_per_second": 2e9, "flops_per_second": 1e12}
    row = bench_gpu.measure(kernel, plain, operands, limits, 1)
    assert row["agrees"] and row["largest_error"] < 1e-5
    size = operands[0].size
    assert row["flops_per_second"] * row["seconds"] == pytest.approx(10 * size)
    assert row["share_of_bytes_per_second"] == pytest.approx(row["bytes_per_second"] / 2e9)
    wrong = bench_gpu.measure(kernel, lambda *x: plain(*x) * 1.1, operands, limits, 1)
    assert not wrong["agrees"]
    assert "bytes_per_second" not in bench_gpu.measure(plain, plain, operands, limits, 1)


def test_costs_in_a_loop_count_once_a_turn():
    kernel, _, operands = small_pool()

    def three(value, score, chunk):
        return jax.lax.map(lambda v: kernel(v, score, chunk), jnp.stack([value] * 3))

    once = bench_gpu.declared_costs(kernel, operands)
    assert bench_gpu.declared_costs(three, operands) == tuple(3 * x for x in once)


def test_not_finite_where_it_should_be_is_an_error():
    good = np.array([1.0, -np.inf])
    assert bench_gpu.largest_error(good, good) == 0
    assert bench_gpu.largest_error(np.array([1.0, 0.0]), good) == np.inf
    assert bench_gpu.largest_error(np.array([np.nan, -np.inf]), good) == np.inf


def test_ceilings_are_rates():
    found = bench_gpu.ceilings(1, size=1024, length=16)
    assert all(rate > 0 for rate in found.values())


@pytest.mark.parametrize("op", sorted({p.op for p in programs("pallas_gpu")}))
def test_whole_numbers_are_such_as_a_model_has(op):
    program = next(p for p in programs("pallas_gpu") if p.op == op and p.direction == "forward")
    _, operands = function_of(program, "pallas_gpu")
    small = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*(min(n, 64) for n in x.shape),), x.dtype), operands
    )
    drawn = bench_gpu.draw(Program(op, program.shape, "forward"), small)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), drawn) == jax.tree.map(
        lambda x: (x.shape, x.dtype), small
    )
    whole = [x for x in jax.tree.leaves(drawn) if x.dtype == jnp.int32]
    assert all((x >= 0).all() for x in whole)
    if op != "chunk_pool":
        assert any((x != x[..., :1]).any() for x in whole)
