# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the register's faults into a copy of the code, one by one, and expects a test to go red.

Those that streams of any decoder can have are planted for Qwen3 as well.

    python -m tests.models.deepseek_v4.plant_faults [start of a fault's name]

Exits with 1 if a fault is not seen, or if its place in the code is no longer found. All of them
take about ten minutes on one core.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
HERE = "tests/models/deepseek_v4"
MODEL = "phasejax/models/deepseek_v4"
STREAMS = "tests/models/test_streaming.py"
ANY_CUTS = f"{STREAMS}::test_any_cuts_of_ragged_rows_equal_one_call"
WRONG_TAILS = f"{STREAMS}::test_wrong_tails_leave_no_trace"
REGISTER, REFERENCES = f"{HERE}/test_register.py", f"{HERE}/test_references.py"
CSA = f"{REFERENCES}::test_v4_layers[1]"

NOT_PLANTED = {  # register number: why
    "5e": "a cache is a value, so a new one cannot hold what an earlier request left",
    "11": "no row is addressed modulo a size, so none can stand for another; 25 forgets too early",
    "24": "differences of rounding that tolerances have to allow for, no fault",
}
FAULTS = (  # register number and fault, file, what stands there, what is put there, the test
    (
        "1 entries are not masked",
        "attention.py",
        "end = self.ratio * (jnp.arange(entries.shape[1]) + 1) - 1",
        "end = 0 * jnp.arange(entries.shape[1])",
        f"{REGISTER}::test_01_02_prefill_does_not_see_the_future[512]",
    ),
    (
        "2 an entry shows too early",
        "attention.py",
        "(jnp.arange(entries.shape[1]) + 1) - 1",
        "jnp.arange(entries.shape[1])",
        f"{REGISTER}::test_01_02_prefill_does_not_see_the_future[512]",
    ),
    (
        "2 an entry is picked too early",
        "indexer.py",
        "(jnp.arange(entries) + 1) * self.ratio - 1",
        "jnp.arange(entries) * self.ratio",
        f"{REGISTER}::test_01_02_prefill_does_not_see_the_future[1]",
    ),
    (
        "3 visibility from the step's end",
        "attention.py",
        "start[:, None] + jnp.arange(query.shape[1])",
        "start[:, None] + query.shape[1] - 1 + 0 * jnp.arange(query.shape[1])",
        f"{REGISTER}::test_03_tokens_of_one_step_see_their_own_entries",
    ),
    (
        "4 recent tokens are not kept",
        "compressor.py",
        "WindowState(extend(state.rows, rows, count)",
        "WindowState(state.rows",
        f"{REGISTER}::test_04_decoding_keeps_the_overlap_lane",
    ),
    (
        "5a no entries in prefill",
        "attention.py",
        "if self.ratio == 0 or entries is None:",
        "if self.ratio == 0 or entries is None or query.shape[1] > 1:",
        f"{REGISTER}::test_05a_compressed_branch_is_on_in_prefill",
    ),
    (
        "5b entries are not rotated",
        "attention.py",
        "rotate(latent, made.position, self.rotary)[:, :, 0]",
        "latent[:, :, 0]",
        CSA,
    ),
    (
        "5c pending tokens are forgotten",
        "compressor.py",
        "count), state.length + count)",
        "count), state.length + count // 4 * 4)",
        f"{REGISTER}::test_05c_both_pools_have_a_row_for_every_stride",
    ),
    (
        "5d sigmoid in the indexer",
        "pallas_kernels/index_topk/reference.py",
        "jax.nn.relu(dots)",
        "jax.nn.sigmoid(dots)",
        f"{REGISTER}::test_05d_index_scores_are_sums_of_positive_parts",
    ),
    (
        "6 positions count twice",
        "phasejax/models/decoder.py",
        "position + cache.length[:, None]",
        "position + 2 * cache.length[:, None]",
        f"{REGISTER}::test_06_extension_counts_positions_once",
    ),
    (
        "7 no entry is written to slot 0",
        "attention.py",
        "made.position // ratio, stored.shape[1])",
        "made.position // ratio, 0)",
        f"{REGISTER}::test_07_tokens_within_a_window_write_no_entry",
    ),
    (
        "8 a window that has just filled makes no entry",
        "compressor.py",
        "(index + 1) * self.ratio <= ",
        "(index + 1) * self.ratio < ",
        f"{REGISTER}::test_08_around_one_full_window[4]",
    ),
    (
        "9 lengths are not used",
        "compressor.py",
        "<= (state.length + count)[:, None]",
        "<= (state.length + new)[:, None]",
        f"{REGISTER}::test_09_17_rows_of_other_lengths",
    ),
    (
        "10 state is not taken back",
        "phasejax/compress/history.py",
        "arange(recent.shape[1])[None] - count[:, None], 0)",
        "arange(recent.shape[1])[None] - 0 * count[:, None], 0)",
        f"{REGISTER}::test_10_drafts_are_taken_back_after_a_partial_accept",
    ),
    (
        "12 state moves on before pooling",
        "compressor.py",
        "seen = recall(state.rows, rows, before)",
        "seen = recall(extend(state.rows, rows, count), rows, before)",
        f"{REGISTER}::test_12_windows_are_pooled_before_the_state_moves_on",
    ),
    (
        "13 a stream reads another one's raw window",
        "attention.py",
        "exact = recall(recent, exact",
        "exact = recall(recent[::-1], exact",
        f"{REGISTER}::test_13_14_a_prefix_is_used_again_at_any_cut[3]",
    ),
    (
        "14 a prefix is cut at a multiple of the stride",
        "compressor.py",
        "row - (state.length - before)",
        "row - (state.length // 4 * 4 - before)",
        f"{REGISTER}::test_13_14_a_prefix_is_used_again_at_any_cut[6]",
    ),
    (
        "15 left padding is pooled",
        "phasejax/models/decoder.py",
        'or padding == "right" else',
        'or padding != "no" else',
        f"{REGISTER}::test_15_padding_is_not_pooled[left]",
    ),
    (
        "16 NaN where scores vanish",
        "moe.py",
        "jnp.where(positive, softplus, 1)",
        "softplus",
        f"{REGISTER}::test_16_vanished_routing_scores_have_finite_gradients",
    ),
    (
        "17 entries are counted over the batch",
        "compressor.py",
        "(state.length // self.ratio)[:, None]",
        "(state.length.sum() // batch // self.ratio)[None, None]",
        f"{REGISTER}::test_09_17_rows_of_other_lengths",
    ),
    (
        "18 the draft layer has layer 1's ratio",
        "config.py",
        "return self.compress_ratios[layer]",
        "return self.compress_ratios[layer if layer < self.num_layers else 1]",
        f"{REGISTER}::test_18_the_list_of_ratios_may_go_on_with_a_draft_layer",
    ),
    (
        "19 one position for all streams",
        "phasejax/models/decoder.py",
        "position + cache.length[:, None]",
        "position + cache.length[:1, None]",
        f"{REGISTER}::test_19_streams_stand_at_positions_of_their_own",
    ),
    (
        "20 a pending token is left behind",
        "compressor.py",
        "WindowState(extend(state.rows, rows, count)",
        "WindowState(extend(state.rows, rows, count // 2 * 2)",
        f"{REGISTER}::test_20_a_pending_token_survives_the_prefill[21]",
    ),
    (
        "21 one rotation for prefill and decode",
        "attention.py",
        "query = rotate(query, position, self.rotary)",
        "query = rotate(query, position[:1], self.rotary)",
        f"{REGISTER}::test_21_prefill_and_decode_in_one_batch",
    ),
    (
        "22 the matrix is transposed",
        "hyper_connections.py",
        "btjk,btjd->btkd",
        "btkj,btjd->btkd",
        f"{REGISTER}::test_22_streams_mix_over_the_first_index",
    ),
    (
        "22 YaRN scales sines",
        "rope.py",
        "attention_factor: float = 1.0",
        "attention_factor: float = 1.2773",
        f"{REGISTER}::test_22_released_models_have_no_attention_factor",
    ),
    (
        "22 blocks of fp8 have 128 rows always",
        "phasejax/checkpoints/deepseek_v4_config.py",
        "return block[0], block[1]",
        "return FP8_BLOCK",
        f"{REGISTER}::test_22_blocks_of_fp8_are_as_large_as_the_config_says",
    ),
    (
        "23 slots before the prompt count",
        "compressor.py",
        "jnp.where(real, scores, -jnp.inf)",
        "scores",
        f"{REGISTER}::test_13_14_a_prefix_is_used_again_at_any_cut[3]",
    ),
    (
        "25 no room for drafts",
        "attention.py",
        "config.local_window - 1 + spare",
        "config.local_window - 1",
        f"{REGISTER}::test_11_25_a_wrong_tail_leaves_no_trace[5]",
    ),
    (
        "26 rotated channels are rounded",
        "quantization.py",
        "kept = x.shape[-1] - rotary_dim",
        "kept = x.shape[-1]",
        f"{REGISTER}::test_26_rotated_channels_are_not_rounded",
    ),
    (
        "27 keys stay in the plain basis",
        "indexer.py",
        "self._rounded(rotate(key, position, self.rotary)[:, :, 0])",
        "rotate(key, position, self.rotary)[:, :, 0]",
        f"{REGISTER}::test_27_hadamard_on_both_sides_changes_no_score",
    ),
    (
        "- lanes are swapped in one call",
        "compressor.py",
        "chunk_pool(chunks[..., 0, :, :], chunks[..., 1, :, :], bias)",
        "chunk_pool(chunks[..., 0, ::-1, :], chunks[..., 1, ::-1, :], bias)",
        CSA,
    ),
    (
        "- lanes are swapped in a stream",
        "compressor.py",
        "part[..., lane, :] for lane",
        "part[..., -1 - lane, :] for lane",
        f"{REGISTER}::test_13_14_a_prefix_is_used_again_at_any_cut[3]",
    ),
    (
        "- gates of the other lane",
        "compressor.py",
        "for lane in range(self.lanes))",
        "for lane in reversed(range(self.lanes)))",
        f"{HERE}/test_compressor.py::test_gates_are_the_weights_of_the_entries[15]",
    ),
    (
        "- biases are a row off in one call",
        "compressor.py",
        "self.bias[...].reshape(places)",
        "jnp.roll(self.bias[...], 1, axis=0).reshape(places)",
        CSA,
    ),
    (
        "- biases are a row off in a stream",
        "compressor.py",
        "jnp.concatenate(lanes, axis=0)[None, None]",
        "jnp.roll(jnp.concatenate(lanes, axis=0), 1, axis=0)[None, None]",
        f"{REGISTER}::test_13_14_a_prefix_is_used_again_at_any_cut[3]",
    ),
    (
        "- -0 is below 0",
        "indexer.py",
        "scores = jnp.where(scores == 0, 0.0, scores)",
        "pass",
        f"{REGISTER}::test_ties_go_to_the_lower_index_whatever_the_sign_of_zero",
    ),
    (
        "- every block of queries reads the first one's tokens",
        "pallas_kernels/selected_attention/xla_blocked.py",
        "start_index=start,",
        "start_index=0 * start,",
        f"{HERE}/test_blocks.py::test_whole_sequences[v4]",
    ),
    (
        "- sines are rounded always",
        "rope.py",
        "if rotary.rounds_sines:",
        "if True:",
        f"{HERE}/test_rope.py::test_tables_are_rounded_or_not[100003-False]",
    ),
    (
        "- a later token is seen",
        "pallas_kernels/masks.py",
        "token <= position[..., :, None]",
        "token <= position[..., :, None] + 1",
        f"{HERE}/test_properties.py::test_a_token_changes_nothing_before_it_nor_in_other_rows[v4]",
    ),
    (
        "- drafts are not taken back",
        "attention.py",
        "None if state is None else state.rewind(count)",
        "state",
        f"{HERE}/test_properties.py::test_any_cuts_of_ragged_rows_with_drafts_equal_one_call[v41]",
    ),
    (
        "- padding is shifted the other way",
        "phasejax/models/decoder.py",
        "tokens = _roll_rows(tokens, shift)",
        "tokens = _roll_rows(tokens, -shift)",
        f"{HERE}/test_properties.py::test_padding_changes_nothing[left]",
    ),
    (
        "- the window of the next entry is as wide",
        "compressor.py",
        "return index * self.ratio - (self.window - self.ratio)",
        "return index * self.ratio - (self.window - self.ratio) // 2",
        f"{HERE}/test_properties.py::test_entries_of_any_length[4]",
    ),
    (
        "- Qwen3: an entry shows with the step in which it is completed",
        "phasejax/models/attention.py",
        "windows, made = self.compressor.append(state.windows, hidden, count)",
        "windows, made = self.compressor.append(state.windows, hidden, count);"
        " import dataclasses as d; made = d.replace(made, end=made.end - 1)",
        f"{ANY_CUTS}[w8s4]",
    ),
    (
        "- Qwen3: entries of tokens that were taken back stay",
        "phasejax/models/store.py",
        "kept = self.end < length[:, None]",
        "kept = self.end < NEVER",
        f"{WRONG_TAILS}[w8s4]",
    ),
    (
        "- Qwen3: entries of tokens that were taken back are seen again",
        "phasejax/models/store.py",
        "jnp.where(kept, self.end, NEVER)",
        "self.end",
        f"{STREAMS}::test_entries_of_tokens_that_were_taken_back_are_out_of_sight",
    ),
    (
        "- Qwen3: no room for drafts among the exact tokens",
        "phasejax/models/attention.py",
        "self._reach + spare",
        "self._reach",
        f"{WRONG_TAILS}[w8s8]",
    ),
    (
        "- Qwen3: no room for drafts in the compressor",
        "phasejax/compress/static.py",
        "window - 1 + spare",
        "window - 1",
        f"{WRONG_TAILS}[w8s6]",
    ),
    (
        "- Qwen3: exact tokens before the prompt are read",
        "pallas_kernels/compressed_attention/api.py",
        "jnp.maximum(ranges.since, -first[:, None])",
        "ranges.since",
        f"{ANY_CUTS}[w8s8]",
    ),
    (
        "- Qwen3: a tail is as long as a window before any entry",
        "phasejax/models/attention.py",
        "tail_only=span.tail_only",
        "tail_only=False",
        "tests/models/test_forward.py::test_a_decoder_is_what_its_definition_says[tail_sink]",
    ),
    (
        "- Qwen3: the last exact tokens move on before they are read",
        "phasejax/models/attention.py",
        "recall(old, new, self._reach)",
        "recall(extend(old, new, count), new, self._reach)",
        f"{ANY_CUTS}[w8s8]",
    ),
    (
        "- Qwen3: entries are rotated by their end",
        "phasejax/models/attention.py",
        "self._finish(made.key, self.key_norm, made.position)",
        "self._finish(made.key, self.key_norm, made.end)",
        f"{ANY_CUTS}[stride_start]",
    ),
    (
        "- Qwen3: padding is stored, full attention",
        "phasejax/models/attention.py",
        "jnp.arange(hidden.shape[1]) < count[:, None]",
        "jnp.arange(hidden.shape[1]) < hidden.shape[1] + 0 * count[:, None]",
        f"{STREAMS}::test_padding_of_full_attention_is_not_stored",
    ),
)


def place(file: str, root: Path = ROOT) -> Path:
    """The file of a fault: one of the model's, or a path from the root."""
    return root / (file if "/" in file else f"{MODEL}/{file}")


def is_seen(file: str, there: str, fault: str, test: str) -> bool:
    """Whether the test fails once the fault is in."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("phasejax", "pallas_kernels", "tests", "setup.cfg", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder) / name)
        path = place(file, Path(folder))
        path.write_text(path.read_text().replace(there, fault))
        search = os.pathsep.join([folder, *sys.path[1:]])
        environment = os.environ | {"PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", test]
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if ran.returncode not in (0, 1):
        raise RuntimeError(ran.stdout + ran.stderr)
    return ran.returncode == 1


def main(prefix: str = "") -> int:
    """Plants every fault whose name starts so; the number of those that no test saw."""
    missed = 0
    for name, file, there, fault, test in FAULTS:
        if not name.startswith(prefix):
            continue
        seen = is_seen(file, there, fault, test)
        missed += not seen
        sys.stdout.write(f"{'red' if seen else 'NOT SEEN':8} {name}\n")
        sys.stdout.flush()
    return missed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
