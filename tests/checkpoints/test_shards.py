# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of safetensors: written and read back bit by bit; what is damaged is named."""

import json
import tracemalloc

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from phasejax.checkpoints.dequantized import Dequantized
from phasejax.checkpoints.quantization import E4M3, E8M0, dequantize, quantize_fp4, quantize_fp8
from phasejax.checkpoints.safetensors_file import DTYPES
from phasejax.checkpoints.shard_writer import write_shards
from phasejax.checkpoints.shards import INDEX, Shards

FLOAT32 = np.dtype(np.float32)


def arrays() -> dict[str, np.ndarray]:
    """One tensor of each dtype, with every bit pattern that its size allows; and odd shapes."""
    made = {}
    for name, dtype in DTYPES.items():
        raw = np.random.default_rng(0).integers(0, 256, 6 * dtype.itemsize, np.uint8)
        made[f"{name}.x"] = raw.view(dtype).reshape(2, 3)
    made["scalar"] = np.float32(3.0).reshape(())
    made["none"] = np.zeros((0, 4), np.float32)
    made["transposed"] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    return made


@pytest.fixture
def several(tmp_path):
    """Four shards of one tensor each, and their index."""
    values = {f"t{i}": np.full((4, 8), i, np.float32) for i in range(4)}
    write_shards(tmp_path, values.items(), max_bytes=128)
    return tmp_path


def edit_index(directory, change):
    index = json.loads((directory / INDEX).read_text())
    change(index)
    (directory / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("max_bytes", [10**9, 64, 1])
def test_what_is_written_is_read_bit_by_bit(tmp_path, max_bytes):
    written = arrays()
    write_shards(tmp_path, written.items(), max_bytes=max_bytes)
    shards = Shards(tmp_path)
    assert set(shards) == set(written) and len(shards) == len(written)
    for name, array in written.items():
        info, read = shards.info(name), shards[name]
        assert (info.dtype, info.shape, info.nbytes) == (array.dtype, array.shape, array.nbytes)
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes()


def test_jax_arrays_can_be_written(tmp_path):
    write_shards(tmp_path, [("x", jnp.arange(3, dtype=jnp.bfloat16))])
    assert Shards(tmp_path)["x"].tolist() == [0, 1, 2]


def test_shards_keep_to_their_size_and_the_index_tells_all(several):
    files = sorted(p.name for p in several.iterdir())
    assert files == [*(f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)), INDEX]
    index = json.loads((several / INDEX).read_text())
    assert index["metadata"]["total_size"] == 4 * 128
    assert index["weight_map"]["t2"] == "model-00003-of-00004.safetensors"


def test_one_shard_needs_no_index(tmp_path):
    write_shards(tmp_path, arrays().items())
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_single_file_may_have_any_name(tmp_path):
    write_shards(tmp_path, [("x", np.ones(2))])
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert list(Shards(tmp_path)) == ["x"]


def test_other_files_beside_the_index_are_not_looked_at(several):
    (several / "consolidated.safetensors").write_bytes(b"no header")
    assert len(Shards(several)) == 4


def test_asking_for_a_name_reads_nothing(several):
    shards = Shards(several)
    for path in several.glob("*.safetensors"):
        path.unlink()
    assert "t0" in shards and "t9" not in shards
    with pytest.raises(KeyError):
        shards["t9"]


def test_reading_everything_holds_two_shards_at_most(tmp_path):
    shard, tensors = 1 << 20, 14  # seven fill a shard
    values = np.random.default_rng(0).normal(size=(512, 256)).astype(np.float32)
    weight, scale = quantize_fp8(values)

    def draw():
        for i in range(tensors):
            yield f"l{i}.weight", weight.copy()
            yield f"l{i}.scale", scale.copy()

    tracemalloc.start()
    try:
        write_shards(tmp_path, draw(), max_bytes=shard)
        assert len(list(tmp_path.glob("model-*"))) == 2
        assert tracemalloc.get_traced_memory()[1] < 1.5 * shard
        tracemalloc.reset_peak()
        stored = Dequantized(Shards(tmp_path))
        for name in stored:
            assert stored.read(name, FLOAT32).shape == (512, 256)
        assert tracemalloc.get_traced_memory()[1] < 2 * shard
    finally:
        tracemalloc.stop()


# What is refused.


@pytest.mark.parametrize("size", [0, 5, 60, -1])
def test_a_truncated_shard_is_named(several, size):
    path = several / "model-00002-of-00004.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="model-00002-of-00004.safetensors is .*truncated"):
        Shards(several)


@pytest.mark.parametrize(
    "data", [b"\xff" * 200, b"<html>not found</html>", b"\x08" + bytes(7) + b"{broken}"]
)
def test_a_corrupt_shard_is_named(several, data):
    (several / "model-00003-of-00004.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match="model-00003-of-00004.safetensors is"):
        Shards(several)


def test_a_shard_with_bytes_too_many_is_named(several):
    path = several / "model-00001-of-00004.safetensors"
    path.write_bytes(path.read_bytes() + b"\0\0")
    with pytest.raises(ValueError, match="model-00001-of-00004.safetensors is"):
        Shards(several)


def test_a_missing_shard_is_named(several):
    (several / "model-00004-of-00004.safetensors").unlink()
    with pytest.raises(ValueError, match="model-00004-of-00004.safetensors is missing"):
        Shards(several)


def test_a_shard_that_shrinks_while_it_is_read_is_named(several):
    shards = Shards(several)
    path = several / "model-00001-of-00004.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="model-00001-of-00004.safetensors became shorter"):
        shards["t0"]


def test_a_tensor_that_its_shard_lacks_is_named(several):
    def change(index):
        index["weight_map"]["extra"] = "model-00001-of-00004.safetensors"

    edit_index(several, change)
    with pytest.raises(ValueError, match=r"places tensor 'extra' in model-00001-of-00004"):
        Shards(several)


def test_a_tensor_in_two_shards_is_named(several):
    values = {"t0": np.ones(2), "t1": np.ones(2)}
    write_shards(several / "new", values.items())
    (several / "new/model.safetensors").replace(several / "model-00001-of-00004.safetensors")
    with pytest.raises(ValueError, match="holds tensor 't1', which .* in model-00002-of-00004"):
        Shards(several)


def test_a_tensor_that_the_index_lacks_is_named(several):
    write_shards(several / "new", {"t0": np.ones(2), "other": np.ones(2)}.items())
    (several / "new/model.safetensors").replace(several / "model-00001-of-00004.safetensors")
    with pytest.raises(ValueError, match="holds tensor 'other', which .* places in no shard"):
        Shards(several)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"weight_map": ["x"]}', '{"weight_map": {"x": [] }}']
)
def test_a_damaged_index_is_named(several, text):
    (several / INDEX).write_text(text)
    with pytest.raises(ValueError, match=r"index.json has no readable weight_map"):
        Shards(several)


@pytest.mark.parametrize("file", ["../x.safetensors", "/etc/x.safetensors", 3])
def test_an_index_that_points_elsewhere_is_refused(several, file):
    edit_index(several, lambda index: index["weight_map"].update(t0=file))
    with pytest.raises(ValueError, match=r"names the shard .* lies beside its index"):
        Shards(several)


def test_no_checkpoint_or_shards_without_index(several, tmp_path_factory):
    with pytest.raises(ValueError, match="holds 0 safetensors files and no model.safetensors.ind"):
        Shards(tmp_path_factory.mktemp("empty"))
    (several / INDEX).unlink()
    with pytest.raises(ValueError, match="holds 4 safetensors files"):
        Shards(several)


def test_a_dtype_that_no_checkpoint_holds_is_named(tmp_path):
    header = b'{"x":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4]}}  '
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"Tensor 'x' of .* has dtype F8_E5M2, but"):
        Shards(tmp_path)


def test_the_writer_refuses_what_it_cannot_keep(several, tmp_path):
    with pytest.raises(ValueError, match="holds model-00001-of-00004.safetensors already"):
        write_shards(several, [("x", np.ones(2))])
    for tensors, message in (
        ([], "tensors is empty"),
        ([("x", np.ones(2)), ("x", np.ones(2))], "'x' comes twice"),
        ([("x", np.ones(2)), ("y", np.ones(2, bool))], "'y' has dtype bool"),
    ):
        with pytest.raises(ValueError, match=message):
            write_shards(tmp_path / "new", tensors, max_bytes=1)
        assert not list((tmp_path / "new").iterdir())  # nothing half written


# Weights and their scales.


@pytest.fixture
def quantized(tmp_path):
    """A little of each kind that a release holds, weight and scale in different shards."""
    values = np.random.default_rng(0).normal(size=(130, 64)).astype(np.float32)
    fp8, fp8_scale = quantize_fp8(values)
    base, base_scale = quantize_fp8(values, scale_dtype=FLOAT32)
    fp4, fp4_scale = quantize_fp4(values)
    tensors = {
        "attn.wq_a.weight": fp8,
        "attn.compressor.ape": values[:4],
        "attn_norm.weight": values[0].astype(ml_dtypes.bfloat16),
        "ffn.experts.0.w1.weight": fp4,
        "ffn.experts.1.w1.weight": base,
        "ffn.gate.tid2eid": np.arange(6).reshape(3, 2),
        "hc_attn_scale": values[0, :3],
        "attn.wq_a.scale": fp8_scale,
        "ffn.experts.0.w1.scale": fp4_scale,
        "ffn.experts.1.w1.scale": base_scale,
    }
    write_shards(tmp_path / "model", tensors.items(), max_bytes=1)
    return tmp_path / "model", tensors


@pytest.mark.parametrize("dtype", [FLOAT32, np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_a_weight_and_its_scale_are_one_tensor(quantized, dtype):
    directory, tensors = quantized
    got = Dequantized(Shards(directory))
    assert set(got) == {name for name in tensors if not name.endswith(".scale")}
    assert len(got) == 7 and "attn.wq_a.scale" not in got and "hc_attn_scale" in got
    with pytest.raises(KeyError):
        got.read("attn.wq_a.scale", dtype)
    for name in set(got) - {"ffn.gate.tid2eid"}:
        array = got.read(name, dtype)
        assert array.shape == got.shape(name)
        stored, scale = tensors[name], tensors.get(name.replace(".weight", ".scale"))
        if stored.dtype in (E4M3, np.int8):
            assert array.tobytes() == dequantize(stored, scale, dtype).tobytes()
        else:
            assert array.tobytes() == stored.astype(dtype).tobytes()


def test_integers_stay_integers(quantized):
    got = Dequantized(Shards(quantized[0]))
    table = got.read("ffn.gate.tid2eid", np.dtype(np.int32))
    assert table.dtype == np.int32 and table.tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="'ffn.gate.tid2eid' is int64, but the model keeps float"):
        got.read("ffn.gate.tid2eid", FLOAT32)
    with pytest.raises(ValueError, match="'hc_attn_scale' is float32, but the model keeps int32"):
        got.read("hc_attn_scale", np.dtype(np.int32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attn.wq_a.scale": None},
            r"'attn.wq_a.weight' is float8_e4m3fn and 'attn.wq_a.scale' is m",
        ),
        (
            {"attn_norm.scale": np.ones(1, E8M0)},
            r"'attn_norm.scale' is there, but 'attn_norm.weight'",
        ),
        ({"attn.wq_a.weight": np.ones(2, np.float32)}, "'attn.wq_a.scale' is there, but"),
    ],
)
def test_scales_and_weights_that_do_not_match_are_named(quantized, tmp_path, changes, message):
    tensors = {k: v for k, v in (quantized[1] | changes).items() if v is not None}
    write_shards(tmp_path / "bad", tensors.items())
    with pytest.raises(ValueError, match=message):
        Dequantized(Shards(tmp_path / "bad"))


def test_a_wrong_block_size_names_the_tensor(quantized):
    with pytest.raises(ValueError, match=r"'attn.wq_a.weight': scale is .* blocks of \(32, 32\)"):
        Dequantized(Shards(quantized[0]), fp8_block=(32, 32)).read("attn.wq_a.weight", FLOAT32)
