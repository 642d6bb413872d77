# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of both spellings and every format, loaded, written and refused.

The names of the synthetic checkpoints come from what transformers writes, tests/golden, and the
released spelling from those by hand, not from the library's own table.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors import SafetensorError

from phasejax.checkpoints import convert_hf, from_hf, to_hf
from phasejax.checkpoints.deepseek_v4_config import write_config
from phasejax.checkpoints.deepseek_v4_tensors import structure
from phasejax.checkpoints.dequantized import Dequantized
from phasejax.checkpoints.quantization import E4M3, dequantize, quantize_fp4, quantize_fp8
from phasejax.checkpoints.shard_writer import write_shards
from phasejax.checkpoints.shards import Shards
from phasejax.models.deepseek_v4.presets import preset

GOLDEN = Path(__file__).parents[1] / "golden"
ROOT = Path(__file__).parents[2]
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
# Flat, as DeepSeek publishes it, with the sizes of the golden case of every layer.
CONFIG = {
    "model_type": "deepseek_v4",
    "vocab_size": 48,
    "hidden_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "qk_rope_head_dim": 4,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "swiglu_limit": 10.0,
    "sliding_window": 8,
    "compress_ratios": [0, 4, 128, 4, 0],
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 3,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
RELEASED = {  # what the released spelling calls otherwise, after "model." is gone
    "embed_tokens.weight": "embed.weight",
    "hc_head.hc_fn": "hc_head_fn",
    "hc_head.hc_base": "hc_head_base",
    "hc_head.hc_scale": "hc_head_scale",
}
FP8 = ("wq_a.weight", "wq_b.weight", "attn.wkv.weight", "wo_a.weight", "wo_b.weight")


def golden(case: str) -> dict:
    return json.loads((GOLDEN / f"deepseek_v4/{case}.json").read_text())


def fill():
    """The module beside the golden files that makes their tensors."""
    spec = importlib.util.spec_from_file_location("fill", GOLDEN / "fill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def released_name(name: str) -> str:
    name = name.removeprefix("model.")
    return RELEASED.get(name, name.replace("attn.norm.weight", "attn.kv_norm.weight"))


def released_values() -> dict[str, np.ndarray]:
    make, shapes = fill().tensor, golden("every_layer")["shapes"]
    return {released_name(name): make(name, tuple(shape), 4) for name, shape in shapes.items()}


def kept_in_float32(name: str) -> bool:
    return name.endswith(("ape", "attn_sink", "gate.bias")) or "hc_" in name


def unquantized() -> dict[str, np.ndarray]:
    return {
        name: x if kept_in_float32(name) or x.dtype == np.int64 else x.astype(BFLOAT16)
        for name, x in released_values().items()
    }


def quantized(*, base: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Tensors as DeepSeek stores them, and what each is worth in float32."""
    tensors, worth = {}, {}
    for name, x in unquantized().items():
        scale = None
        if ".experts." in name:
            x = x.astype(np.float32)
            x, scale = quantize_fp8(x, scale_dtype=FLOAT32) if base else quantize_fp4(x)
        elif name.endswith(FP8) or "shared_experts" in name:
            x, scale = quantize_fp8(x.astype(np.float32))
        tensors[name] = x
        if scale is not None:
            tensors[name.replace(".weight", ".scale")] = scale
        worth[name] = x.astype(np.float32) if scale is None else dequantize(x, scale, FLOAT32)
    tensors["mtp.0.e_proj.weight"] = np.ones((4, 4), BFLOAT16)
    return tensors, worth


def write(directory: Path, tensors: dict, config: dict = CONFIG, *, max_bytes=20_000) -> Path:
    write_shards(directory, tensors.items(), max_bytes=max_bytes)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def read_all(directory: Path) -> dict[str, np.ndarray]:
    return dict(Shards(directory).items())


def assert_same_bits(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(got) == set(expected)
    for name, x in expected.items():
        assert (got[name].dtype, got[name].shape) == (x.dtype, x.shape), name
        assert got[name].tobytes() == x.tobytes(), name


def parameters(model) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(nnx.state(model))
    return {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in flat}


# Loading.


def test_what_transformers_writes_gives_its_logits(tmp_path):
    case, make = golden("nested_yarn"), fill()
    tensors = {name: make.tensor(name, tuple(s), 4) for name, s in case["shapes"].items()}
    write(tmp_path, tensors, case["config"])
    with pytest.warns(UserWarning, match="no attention_factor, which transformers reads as 1.2773"):
        model = from_hf(tmp_path)
    assert model.config.clamp_shared  # as the package does
    expected = np.load(GOLDEN / "deepseek_v4/nested_yarn.npz")["logits"]
    graph, state = nnx.split(model)
    run = jax.jit(lambda state, tokens: nnx.merge(graph, state)(tokens))
    logits = np.asarray(run(state, make.tokens(len(expected), 48)))
    assert logits.shape == (1, *expected.shape)
    assert np.abs(logits[0] - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("base", [False, True], ids=["fp4_experts", "base"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_released_format_is_dequantised_into_its_place(tmp_path, base, dtype):
    tensors, worth = quantized(base=base)
    model = from_hf(write(tmp_path, tensors), dtype)
    assert model.config.param_dtype == model.config.compute_dtype == dtype
    assert not model.config.clamp_shared
    got = parameters(model)
    expected = {
        "embed": worth["embed.weight"],
        "head.weight": worth["head.weight"],
        "collapse.scale": worth["hc_head_scale"],
        "blocks.1.attention.sink": worth["layers.1.attn.attn_sink"],
        "blocks.1.attention.output_down": worth["layers.1.attn.wo_a.weight"].reshape(2, 8, 32),
        "blocks.2.attention.compressor.bias": worth["layers.2.attn.compressor.ape"],
        "blocks.3.attention.indexer.query_up.weight": worth["layers.3.attn.indexer.wq_b.weight"],
        "blocks.0.moe.router.table": worth["layers.0.ffn.gate.tid2eid"],
        "blocks.3.moe.experts.gate": np.stack(
            [worth[f"layers.3.ffn.experts.{e}.w1.weight"] for e in range(4)]
        ),
        "blocks.3.moe.experts.up": np.stack(
            [worth[f"layers.3.ffn.experts.{e}.w3.weight"] for e in range(4)]
        ),
        "blocks.0.moe.experts.down": np.stack(
            [worth[f"layers.0.ffn.experts.{e}.w2.weight"] for e in range(4)]
        ),
    }
    for name, x in expected.items():
        np.testing.assert_array_equal(got[name], x.astype(got[name].dtype), err_msg=name)
    assert got["blocks.3.moe.experts.gate"].dtype == dtype
    assert got["blocks.1.attention.kv_norm.weight"].dtype == np.float32
    total = sum(x.size for x in worth.values())
    assert sum(x.size for x in got.values()) == total  # nothing is left out or made up


def test_devices_read_no_more_than_their_experts(tmp_path, monkeypatch):
    tensors, worth = quantized(base=False)
    write(tmp_path, tensors)
    mesh = jax.make_mesh((4, 2), ("expert", "row"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    reads = []
    read = Dequantized.read
    monkeypatch.setattr(Dequantized, "read", lambda s, n, d: (reads.append(n), read(s, n, d))[1])

    def placement(path, shape):
        axes = ("expert", "row") if path[-2:-1] == ("experts",) else ()
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))

    model = from_hf(tmp_path, placement=placement)
    stack = model.blocks[2].moe.experts.up[...]
    assert stack.sharding.shard_shape(stack.shape) == (1, 8, 32)
    for expert in range(4):
        name = f"layers.2.ffn.experts.{expert}.w3.weight"
        np.testing.assert_array_equal(np.asarray(stack)[expert], worth[name])
        assert reads.count(name) == 2  # once for each device that holds a part of it
    assert reads.count("head.weight") == 1


# Prints the peaks of loading and of converting, in a process that checks no annotations: those
# checks, and what imports leave, are no part of a checkpoint.
MEASURE = """
import sys, tracemalloc
from phasejax.checkpoints.hugging_face import convert_hf, from_hf
source, size = sys.argv[1], int(sys.argv[2])
for run in (
    lambda: from_hf(source, "bfloat16"),
    lambda: convert_hf(source, source + "-converted", "bfloat16", max_bytes=size),
):
    tracemalloc.start()
    run()
    print(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
"""


def test_the_host_holds_less_than_two_shards(tmp_path, script_env):
    """Experts are nearly all of the model, as in the released ones; half a shard is one stack."""
    inner, size = 16_384, 8 * 2**20
    tensors = unquantized()
    for name, x in tensors.items():
        if "experts" in name:
            tensors[name] = np.ones([inner if n == 16 else n for n in x.shape], BFLOAT16)
    assert sum(x.nbytes for x in tensors.values()) > 7 * size
    config = CONFIG | {"moe_intermediate_size": inner}
    write(tmp_path / "a", tensors, config, max_bytes=size)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "a"), str(size)]
    done = subprocess.run(
        command, cwd=ROOT, env=script_env, capture_output=True, text=True, timeout=300, check=True
    )
    peaks = [int(line) for line in done.stdout.split()]
    assert len(peaks) == 2
    assert max(peaks) < 2 * size


# Writing.


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_released_tensors_come_back_bit_by_bit(tmp_path, dtype):
    tensors = unquantized()
    if dtype == "float32":
        tensors = {k: x if x.dtype == np.int64 else x.astype(FLOAT32) for k, x in tensors.items()}
    write(tmp_path / "a", tensors)
    to_hf(from_hf(tmp_path / "a", dtype), tmp_path / "b", max_bytes=30_000)
    assert_same_bits(read_all(tmp_path / "b"), tensors)
    convert_hf(tmp_path / "a", tmp_path / "c", dtype)
    assert_same_bits(read_all(tmp_path / "c"), tensors)
    models = [from_hf(tmp_path / name, dtype) for name in "abc"]
    assert models[0].config == models[1].config == models[2].config


def test_both_spellings_are_written(tmp_path):
    case, make = golden("every_layer"), fill()
    tensors = {name: make.tensor(name, tuple(s), 4) for name, s in case["shapes"].items()}
    write(tmp_path / "a", tensors, case["config"])
    convert_hf(tmp_path / "a", tmp_path / "b")
    assert_same_bits(read_all(tmp_path / "b"), released_values())
    convert_hf(tmp_path / "b", tmp_path / "c", layout="transformers")
    assert_same_bits(read_all(tmp_path / "c"), tensors)
    to_hf(from_hf(tmp_path / "b"), tmp_path / "d", layout="transformers")
    assert_same_bits(read_all(tmp_path / "d"), tensors)
    assert from_hf(tmp_path / "c").config == from_hf(tmp_path / "a").config


def test_converting_is_loading_and_writing(tmp_path):
    tensors, _ = quantized(base=False)
    write(tmp_path / "a", tensors)
    to_hf(from_hf(tmp_path / "a", "bfloat16"), tmp_path / "b")
    convert_hf(tmp_path / "a", tmp_path / "c", "bfloat16")
    assert_same_bits(read_all(tmp_path / "b"), read_all(tmp_path / "c"))
    assert (tmp_path / "b/config.json").read_text() == (tmp_path / "c/config.json").read_text()


# What is refused.


def without(name):
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("norm.weight"), "lacks tensor 'norm.weight': it does not match"),
        (without("layers.2.ffn.experts.3.w2.weight"), "lacks tensor 'layers.2.ffn.experts.3.w2.w"),
        (without("embed.weight"), "none of the tensors embed.weight, model.embed_tokens.weight"),
        (
            lambda t: t.update({"layers.0.attn.compressor.ape": np.ones((4, 32), np.float32)}),
            "has the surplus tensor 'layers.0.attn.compressor.ape'",
        ),
        (
            lambda t: t.update({f"layers.4.{i}": np.ones(1, np.float32) for i in range(3)}),
            "has the surplus tensor 'layers.4.0' and 2 more",
        ),
        (
            lambda t: t.update({"layers.1.attn.wo_a.weight": np.ones((16, 31), np.float32)}),
            r"'layers.1.attn.wo_a.weight' has shape \[16, 31\], but config.json says \[16, 32\]",
        ),
        (
            lambda t: t.update({"layers.0.ffn.gate.tid2eid": np.ones((48, 2), np.float32)}),
            "'layers.0.ffn.gate.tid2eid' is float32, but the model keeps int32",
        ),
        (
            lambda t: t.update({"layers.3.attn.wo_b.weight": np.ones((32, 16), np.int64)}),
            "'layers.3.attn.wo_b.weight' is int64, but the model keeps float32",
        ),
        (
            lambda t: t["layers.0.ffn.gate.tid2eid"].__setitem__((3, 1), 4),
            "'layers.0.ffn.gate.tid2eid' names expert 4, but config.json says n_routed_experts=4",
        ),
        (
            lambda t: t["layers.0.ffn.gate.tid2eid"].__setitem__((3, 1), -1),
            "'layers.0.ffn.gate.tid2eid' names expert -1",
        ),
        (
            lambda t: t.update(
                {"norm.weight": np.ones(32, E4M3), "norm.scale": np.ones(1, FLOAT32)}
            ),
            "'norm.weight': weight is float8_e4m3fn of shape .* only matrices are quantised",
        ),
        (
            lambda t: t.update(
                {
                    "layers.3.attn.wo_b.weight": np.ones((32, 16), E4M3),
                    "layers.3.attn.wo_b.scale": np.ones((2, 1), FLOAT32),
                }
            ),
            r"'layers.3.attn.wo_b.weight': scale is float32\[2, 1\].*\[1, 1\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, change, message, monkeypatch):
    tensors = unquantized()
    change(tensors)
    write(tmp_path, tensors)
    monkeypatch.setattr(jax, "device_put", None)  # nothing is loaded before all is checked
    monkeypatch.setattr("phasejax.checkpoints.hugging_face._write", None)  # nor written
    with pytest.raises(ValueError, match=message):
        from_hf(tmp_path)
    with pytest.raises(ValueError, match=message):
        convert_hf(tmp_path, tmp_path / "new")
    assert not list((tmp_path / "new").glob("*"))


def test_blocks_of_another_size_are_named(tmp_path):
    tensors, _ = quantized(base=False)
    blocks = {"quantization_config": {"weight_block_size": [16, 16]}}
    with pytest.raises(ValueError, match=r"Tensor 'layers.0.attn.wkv.weight': scale is .*16, 16"):
        from_hf(write(tmp_path, tensors, CONFIG | blocks))


def test_a_directory_or_dtype_that_is_none(tmp_path):
    with pytest.raises(ValueError, match=r"config.json cannot be read .* check the path"):
        from_hf(tmp_path)
    (tmp_path / "config.json").write_text("3")
    with pytest.raises(ValueError, match=r"config.json cannot be read"):
        from_hf(tmp_path)
    with pytest.raises(ValueError, match="dtype='int8' is none of float32, bfloat16"):
        from_hf(tmp_path, "int8")


def small_model():
    """An export's worth of nothing: no array of it is computed."""
    graph, leaves = structure(preset("deepseek_v4_tiny"))
    state = [(path, leaf.replace(np.zeros(leaf.shape, leaf.dtype))) for path, leaf in leaves]
    return nnx.merge(graph, nnx.from_flat_state(state))


def test_what_cannot_be_exported_is_named_before_anything_is_written(tmp_path, monkeypatch):
    model = small_model()
    write(tmp_path / "a", unquantized())
    monkeypatch.setattr("phasejax.checkpoints.shard_writer._split", None)  # draws no tensor

    def refused(message, target="new", **arguments):
        for run in (
            lambda: to_hf(model, tmp_path / target, **arguments),
            lambda: convert_hf(tmp_path / "a", tmp_path / target, **arguments),
        ):
            with pytest.raises(ValueError, match=message):
                run()
        assert not list((tmp_path / target).glob("*.safetensors*"))

    refused("max_bytes=0, but it must be at least 1", max_bytes=0)
    (tmp_path / "file").write_text("")
    refused("directory='.*file/new' is none that can be written to", "file/new")
    refused("directory='.*file' is none that can be written to", "file")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/config.json").write_text("{}")
    refused("holds config.json already: write to an empty one", "b")
    (tmp_path / "c/.writing-killed").mkdir(parents=True)
    refused("holds .writing-killed, which a process makes while it writes", "c")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    refused("has room for 1e-06 GB, but 0.000[23].* GB are to be written: make room")


def test_a_layout_or_model_that_is_none_is_named(tmp_path):
    for name in (to_hf, convert_hf):
        call = getattr(name, "__wrapped__", name)
        with pytest.raises(ValueError, match="layout='hf' is none of released, transformers"):
            call(small_model() if name is to_hf else tmp_path, tmp_path / "new", layout="hf")
    to = getattr(to_hf, "__wrapped__", to_hf)
    with pytest.raises(ValueError, match="model is a Linear, but a DeepseekV4 alone"):
        to(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_write_that_fails_says_so_and_leaves_no_checkpoint(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("phasejax.checkpoints.shard_writer.serialize_file", fail)
    with pytest.raises(OSError, match="new could not be written to .*No space left.*make room"):
        to_hf(small_model(), tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("done", range(4))
def test_a_directory_whose_writer_was_killed_does_not_load(tmp_path, monkeypatch, done):
    """Killed once so many files were at their place, of three: two shards and their index."""

    class Killed(BaseException):
        pass

    left, replace = [done], os.replace

    def kill(*paths):
        if not left[0]:
            raise Killed
        left[0] -= 1
        replace(*paths)

    monkeypatch.setattr(os, "replace", kill)
    model = small_model()
    total = sum(x.nbytes for x in parameters(model).values())
    with pytest.raises(Killed):
        to_hf(model, tmp_path, max_bytes=total * 2 // 3)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="config.json cannot be read"):
        from_hf(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(write_config(model.config)))
    if done < 3:  # not even with the file that comes last
        with pytest.raises(ValueError, match="lacks tensor|holds none of|holds [02] safetensors"):
            from_hf(tmp_path)
