# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run that takes seconds."""

import pytest

from phasejax.training.config import RunConfig

TINY = {
    "name": "tiny",
    "recipe": "tiny",
    "seed": 0,
    "num_layers": 1,
    "width": 16,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 16,
    "mlp_width": 16,
    "attention": "compressed",
    "window": 4,
    "local_window": 4,
    "tie_embeddings": False,
    "init_std": None,
    "embed_std": 1.0,
    "num_records": 3,
    "context": 20,
    "num_keys": 4,
    "num_values": 3,
    "num_fillers": 2,
    "demonstrations": 1,
    "residues": 4,
    "curriculum": ((1, 4, 16, 8),),
    "final_steps": 24,
    "check_every": 4,
    "checkpoint_every": 8,
    "batch_size": 8,
    "microbatch_tokens": 23,  # one prompt, hence one device
    "learning_rate": 0.02,
    "warmup_steps": 4,
    "eval_documents": 40,
    "eval_batch": 32,
    "gate_documents": 3,
}


@pytest.fixture(scope="session")
def tiny():
    """The flat view of the tiny run, with changes."""
    return lambda **changes: RunConfig.from_flat(TINY | changes)
