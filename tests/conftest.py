# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Eight devices on any machine, shapes checked in every call, and cheap compilation.

JAX reads its environment once, when it is first imported, so this file sets it first of all.
"""

import os
import signal
import sys
from importlib.util import find_spec

XLA_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    # Compilation takes half the time; what is compiled runs at less than half the speed.
    "--xla_backend_optimization_level=0",
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background deaf to Ctrl-C, and so would be all that we start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

OUTSIDE = dict(os.environ)  # what a person's shell would give a script
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *XLA_FLAGS)).strip()
os.environ.setdefault("MPLBACKEND", "agg")

import pytest  # noqa: E402
from absl import flags  # noqa: E402

if not flags.FLAGS.is_parsed():
    flags.FLAGS(sys.argv[:1])

if find_spec("beartype") is not None:  # an accelerator's host may lack it
    from jaxtyping import install_import_hook

    # With PEP 484's tower of numbers an int is a float, as a type checker sees it.
    install_import_hook(
        "phasejax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    )

PLATFORM_OF_MARK = {"gpu": "cuda", "tpu": "tpu"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of an accelerator unless JAX_PLATFORMS asks for it."""
    asked = os.environ["JAX_PLATFORMS"].split(",")
    for item in items:
        for mark, platform in PLATFORM_OF_MARK.items():
            if item.get_closest_marker(mark) and platform not in asked:
                item.add_marker(pytest.mark.skip(reason=f"runs with JAX_PLATFORMS={platform}"))


@pytest.fixture(scope="session")
def script_env() -> dict[str, str]:
    """Environment of a script in a subprocess: one CPU device, as on a laptop."""
    return OUTSIDE | {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg", "NO_COLOR": "1"}


@pytest.fixture
def strict_numerics():
    """No implicit promotion of dtypes or ranks: for modules and kernels, not optimizers."""
    import jax

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="module")
def kept_programs(tmp_path_factory):
    """Each call of train or evaluate compiles anew; this spares all but the first."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    compilation_cache.reset_cache()
    for name, value in zip(names, (str(tmp_path_factory.mktemp("compiled")), 0.2), strict=True):
        jax.config.update(name, value)
    yield
    compilation_cache.reset_cache()
    for name, value in before.items():
        jax.config.update(name, value)
