# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Run directories as training and evaluation leave them, with planted profiles."""

import json
from pathlib import Path

import numpy as np
import pytest

from phasejax.compress.geometry import WindowGeometry
from phasejax.evals.gates import save_gates
from phasejax.evals.results import write_result
from phasejax.statistics import draw_correct, draw_positions

M = 24
DOCUMENTS = 64
PLANTED = {
    "full": (0.95,),
    "w8s8": (0.64, 0.73, 0.72, 0.85, 0.76, 0.98, 0.99, 0.12),
    "w8s8_uniform": (0.33, 0.43, 0.46, 0.49, 0.48, 0.46, 0.37, 0.08),
    "w8s8_no_rope": (0.60, 0.63, 0.77, 0.75, 0.69, 0.98, 0.99, 0.31),
    "w4s4": (0.99, 0.98, 0.97, 0.13),
    "w6s6": (0.86, 0.98, 0.99, 0.90, 0.76, 0.60),
    "w12s12": (0.48, 0.50, 0.47, 0.37, 0.15, 0.18, 0.08, 0.09, 0.10, 0.12, 0.16, 0.23),
    "w8s4": (0.63, 0.97, 0.98, 0.72),
    "w2s2": (0.999,),
}
IN_SEQUENCE = ("full", "w8s8", "w8s4", "w4s4", "w2s2")  # the others cost time only
FIELDS = {"w8s8_uniform": {"gate": "uniform"}, "w8s8_no_rope": {"rope_fraction": 0.0}}


def config_of(name: str, seed: int, **fields) -> dict:
    base = {"name": name, "seed": seed, "residues": M, "num_records": 20, "context": 113}
    base |= {"separation": 0, "recipe": "easy", "num_kv_heads": 1, "rope_fraction": 1.0}
    geometry = name.split("_")[0]
    if geometry == "full":
        return base | {"attention": "full", "window": 8, "stride": None, "gate": "scalar"} | fields
    window, stride = map(int, geometry[1:].split("s"))
    base |= {"attention": "compressed", "window": window, "gate": "scalar"}
    return base | {"stride": None if stride == window else stride} | FIELDS.get(name, {}) | fields


def rows_of(profile, documents: int = DOCUMENTS, seed: int = 0) -> dict[str, np.ndarray]:
    position = draw_positions(documents, M, seed, start=M)
    correct = draw_correct(position, profile, seed + 1)
    document, residue = (index.ravel() for index in np.indices(position.shape))
    at, hit = position.ravel(), correct.ravel().astype(int)
    rng = np.random.default_rng(seed)
    value = rng.integers(72, 136, size=at.size)
    return {
        "document": document,
        "residue": residue,
        "shift": at - residue,
        "target_position": at,
        "value_position": at + 1,
        "query_position": np.full(at.size, 127),
        "key": rng.integers(8, 72, size=at.size),
        "value": value,
        "prediction": np.where(hit, value, 72 + (value - 71) % 64),
        "correct": hit,
        "loss": np.where(hit, 0.1, 3.0) + rng.random(at.size),
    }


def metrics_of(steps: int = 1500) -> list[dict]:
    return [
        {
            "step": step,
            "stage": step // 500,
            "loss": 4.2 / (1 + step / 200),
            "accuracy": 1 - 0.95 * 2.0 ** (-step / 300),
            "learning_rate": 5e-3,
            "grad_norm": 1.0,
            "seconds": 7.5 if step % 500 == 0 else 2.5,
        }
        for step in range(0, steps + 1, 50)
    ]


def gates_of(window: int, windows: int = 50) -> dict[int, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(window), size=(windows, 1, 1)).transpose(0, 3, 1, 2)
    peaked = np.zeros((windows, window, 1, 1))
    peaked[:, 1] = 1.0
    return {0: {"key": weights, "value": weights}, 1: {"key": peaked, "value": weights}}


def make_run(
    directory: Path, name: str, seed: int = 0, *, profile=None, documents: int = DOCUMENTS, **fields
) -> Path:
    """Writes one run directory and returns it."""
    workdir = Path(directory) / f"{name}-{seed}"
    workdir.mkdir(parents=True)
    config = config_of(name, seed, **fields)
    (workdir / "config.json").write_text(json.dumps(config))
    lines = [json.dumps(line) for line in metrics_of()]
    (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    profile = PLANTED[name] if profile is None else profile
    meta = {"config": config, "checkpoint_step": 1500, "val_loss": 0.5 + sum(profile) / 99}
    meta["moments"] = {"mean_difference": 0.0, "variance_difference": 0.0}
    for offset, condition in enumerate(("prefix", "in_sequence")):
        rows = rows_of(profile, documents, 10 * seed + 2 * offset)
        write_result(workdir / "results", condition, rows, meta)
    if name == "w8s8":
        save_gates(workdir / "gates.zarr", gates_of(8), WindowGeometry(8, 8))
    return workdir


@pytest.fixture(scope="session")
def quick_runs(tmp_path_factory) -> Path:
    """One run of each planted profile: what the quick preset leaves."""
    directory = tmp_path_factory.mktemp("preset") / "quick"
    for name in PLANTED:
        workdir = make_run(directory, name)
        if name not in IN_SEQUENCE:
            for path in (workdir / "results").glob("in_sequence.*"):
                path.unlink()
    return directory


@pytest.fixture(scope="session")
def quick_summary(quick_runs) -> dict:
    from phasejax.analysis.runs import load_runs
    from phasejax.analysis.summary import summarize

    return summarize(
        load_runs(quick_runs), permutations=199, other_permutations=99, wall_seconds=492.3
    )
