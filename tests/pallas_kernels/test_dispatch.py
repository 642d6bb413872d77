# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which implementation is taken, and what is said when one cannot be had."""

import importlib
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import dispatch

NAMES = ("pallas_tpu", "picky", "plain")


@pytest.fixture(autouse=True)
def an_op(monkeypatch):
    """An op of three implementations: for another platform, for even numbers, for everything."""

    def picky(x):
        if x < 0:
            raise ValueError(f"x={x} is negative: pass a positive one.")
        if x % 2:
            raise NotImplementedError("only even numbers.")
        return "picky"

    functions = {"picky": picky, "plain": lambda x: "plain", "pallas_tpu": lambda x: "pallas_tpu"}
    for name, function in functions.items():
        module = types.ModuleType(name)
        module.double = function
        monkeypatch.setitem(sys.modules, f"pallas_kernels.double.{name}", module)


def call(implementation, x=2):
    return dispatch.call("double", NAMES, implementation, x)


def test_the_best_that_works_is_taken(monkeypatch):
    assert call(None) == "picky"
    assert call(None, 3) == "plain"
    monkeypatch.setattr(dispatch, "platform", lambda: "tpu")
    assert call(None) == "pallas_tpu"


def test_names_are_tried_in_their_order():
    assert call("plain") == "plain"
    assert call(("plain", "picky")) == "plain"
    assert call(["picky", "plain"], 3) == "plain"


def test_a_mistake_of_the_caller_does_not_fall_through():
    with pytest.raises(ValueError, match="x=-1 is negative"):
        call(None, -1)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'pickey' is none of double's.*mean 'picky'"):
        call("pickey")
    with pytest.raises(ValueError, match="names nothing"):
        call(())


def test_what_cannot_run_here_says_what_does():
    with pytest.raises(NotImplementedError, match=r"runs on tpu, not on cpu.*None or 'plain'"):
        call("pallas_tpu")
    with pytest.raises(ExceptionGroup, match="none of them") as caught:
        call(("pallas_tpu", "picky"), 3)
    assert len(caught.value.exceptions) == 2


def test_what_cannot_be_imported_falls_through(monkeypatch):
    monkeypatch.setitem(sys.modules, "pallas_kernels.double.picky", None)
    assert call(None) == "plain"
    with pytest.raises(NotImplementedError, match="not installed"):
        call("picky")


def test_kernels_are_left_out_where_the_compiler_would_partition_them(monkeypatch):
    monkeypatch.setattr(dispatch, "platform", lambda: "tpu")
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert call(None) == "picky"
        with pytest.raises(NotImplementedError, match="shard_map"):
            call("pallas_tpu")
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))):
        assert call(None) == "pallas_tpu"
    taken = []

    def inside(x):
        taken.append(call(None))
        return x

    shards = jax.shard_map(
        inside, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P("data"), check_vma=False
    )
    jax.eval_shape(shards, jnp.zeros(4))
    assert taken == ["pallas_tpu"]


def test_the_default_device_decides():
    assert dispatch.platform() == "cpu"
    with jax.default_device(jax.devices("cpu")[1]):
        assert dispatch.platform() == "cpu"


def test_operands_are_real():
    dispatch.check_real(query=jnp.zeros(2, jnp.bfloat16))
    with pytest.raises(ValueError, match=r"key.dtype=int32.*astype"):
        dispatch.check_real(query=jnp.zeros(2), key=jnp.zeros(2, jnp.int32))
    with pytest.raises(ValueError, match=r"key.dtype=float8.*astype"):
        dispatch.check_real(sink=None, key=jnp.zeros(2, jnp.float8_e4m3fn))


def test_indices_are_whole():
    dispatch.check_whole(end=jnp.zeros(2, jnp.uint8), position=None)
    with pytest.raises(ValueError, match=r"end.dtype=bool.*astype"):
        dispatch.check_whole(end=jnp.zeros(2, bool))


OPS = sorted(p.parent.name for p in Path(dispatch.__file__).parent.glob("*/api.py"))


@pytest.mark.parametrize("op", OPS)
def test_every_op_tries_kernels_then_tiles_then_the_contract(op):
    found = importlib.import_module(f"pallas_kernels.{op}.api").IMPLEMENTATIONS
    assert found == ("pallas_tpu", "pallas_gpu", "xla_blocked", "reference")
    folder = Path(dispatch.__file__).parent / op
    assert all((folder / f"{name}.py").exists() for name in found)
