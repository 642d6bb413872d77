# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4 as the package transformers runs it, eagerly on one core, to compare with."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

# The layers of the released models at sizes that any machine can run, every kind of them.
TINY = dict(
    vocab_size=64,
    hidden_size=32,
    moe_intermediate_size=16,
    num_hidden_layers=4,
    num_attention_heads=4,
    head_dim=16,
    q_lora_rank=24,
    num_experts_per_tok=2,
    n_routed_experts=4,
    o_groups=2,
    o_lora_rank=8,
    index_n_heads=2,
    index_head_dim=8,
    index_topk=3,
    sliding_window=8,
    compress_ratios=[0, 4, 128, 4, 0],
    num_hash_layers=1,
    qk_rope_head_dim=4,
    max_position_embeddings=65_536,
)


class Peer:
    """The package's model with random weights, in float32.

    Raises:
        ValueError: if torch or transformers is missing.
    """

    def __init__(self) -> None:
        try:
            self.torch: Any = importlib.import_module("torch")
            package: Any = importlib.import_module("transformers")
        except ImportError as error:
            raise ValueError(
                "compare='transformers' needs two packages that phasejax does not:"
                " pip install torch 'transformers==5.23.*'."
            ) from error
        self.versions = {"torch": self.torch.__version__, "transformers": package.__version__}
        self.torch.set_num_threads(1)
        self.torch.set_grad_enabled(False)
        self.torch.manual_seed(0)
        self.model = package.DeepseekV4ForCausalLM(package.DeepseekV4Config(**TINY)).eval()

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the model as a checkpoint."""
        self.model.save_pretrained(directory)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits of whole prompts, with `stable_ties`."""
        with self.stable_ties():
            return self.model(self._tensor(tokens), use_cache=False).logits.numpy()

    @contextlib.contextmanager
    def stable_ties(self) -> Iterator[None]:
        """Equal scores of the package's indexer go to the lower index, as here, and more slowly."""

        def stable_topk(x: Any, k: int, dim: int = -1, **_: object) -> Any:
            found = self.torch.sort(x, dim=dim, descending=True, stable=True)
            return self.torch.return_types.topk(tuple(part[..., :k] for part in found))

        with (
            mock.patch("torch.topk", stable_topk),
            mock.patch("torch.Tensor.topk", stable_topk),
        ):
            yield

    def prefill(self, tokens: np.ndarray) -> Any:
        """What the package returns for whole prompts, with its cache."""
        return self.model(self._tensor(tokens), use_cache=True, logits_to_keep=1)

    def decode(self, out: Any, count: int) -> np.ndarray:
        """The likeliest next tokens after a prefill, one step after another; uses its cache up."""
        chosen = []
        for _ in range(count):
            token = out.logits[:, -1:].argmax(-1)
            chosen.append(token)
            out = self.model(token, past_key_values=out.past_key_values, use_cache=True)
        return self.torch.cat(chosen, 1).numpy()

    def _tensor(self, tokens: np.ndarray) -> Any:
        return self.torch.from_numpy(tokens.astype(np.int64))
