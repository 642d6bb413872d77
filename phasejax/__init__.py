# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""phasejax: find, measure, explain and remove the weak spots of chunked KV-cache compression.

Importing phasejax costs milliseconds: a name below imports its module, and with it JAX, when it is
first used. Nothing in the library defines flags, prints, or touches a device at import.
"""

from typing import TYPE_CHECKING

from phasejax import _compat, _lazy

if TYPE_CHECKING:
    from phasejax.compress.base import Compressor, Entries
    from phasejax.compress.geometry import WindowGeometry
    from phasejax.compress.static import StaticCompressor
    from phasejax.models.config import ModelConfig
    from phasejax.models.deepseek_v4.config import DeepseekV4Config
    from phasejax.models.deepseek_v4.decoder import DeepseekV4
    from phasejax.models.generate import generate
    from phasejax.models.qwen3 import Qwen3
    from phasejax.tasks.record_lookup import TaskConfig

__version__ = "0.1.0"

_HOME = {
    "Compressor": "phasejax.compress.base",
    "DeepseekV4": "phasejax.models.deepseek_v4.decoder",
    "DeepseekV4Config": "phasejax.models.deepseek_v4.config",
    "Entries": "phasejax.compress.base",
    "ModelConfig": "phasejax.models.config",
    "Qwen3": "phasejax.models.qwen3",
    "StaticCompressor": "phasejax.compress.static",
    "TaskConfig": "phasejax.tasks.record_lookup",
    "WindowGeometry": "phasejax.compress.geometry",
    "generate": "phasejax.models.generate",
}

__all__ = [
    "Compressor",
    "DeepseekV4",
    "DeepseekV4Config",
    "Entries",
    "ModelConfig",
    "Qwen3",
    "StaticCompressor",
    "TaskConfig",
    "WindowGeometry",
    "__version__",
    "generate",
]

_compat.jax_version()

__getattr__, __dir__ = _lazy.lazy_names(__name__, _HOME)
