# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs to numbers: everything that a report says, as one plain JSON object.

Accuracies and gaps are fractions. The numbers at the top of a run's entry come from prefix padding;
the block "in_sequence" holds the same for in-sequence padding. All gaps are over the same M raw
residues, controls included, unless their name says folded or straddle_free.
"""

import dataclasses
import datetime
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from phasejax.analysis.caveats import caveats
from phasejax.analysis.claims import evaluate_claims
from phasejax.analysis.gates import concentration, gate_mass_by_phase
from phasejax.analysis.runs import PRIMARY, Run, arrange
from phasejax.analysis.seeds import summarize_variants
from phasejax.analysis.verdicts import verdict
from phasejax.evals.gates import load_gates
from phasejax.evals.results import versions
from phasejax.statistics import accuracy_profile, estimate_gap, known_period_test, scan_periods
from phasejax.tasks.record_lookup import TaskConfig

NESTED = 1999
_log = logging.getLogger(__name__)


def divisors(modulus: int) -> list[int]:
    """Periods 2 <= P < modulus to which residues can be folded."""
    return [period for period in range(2, modulus) if modulus % period == 0]


def summarize_evaluation(
    run: Run, condition: str = PRIMARY, *, permutations: int = 9999, seed: int = 0
) -> dict[str, Any]:
    """Numbers of one evaluation condition of a run.

    Args:
        run: the run.
        condition: which evaluation.
        permutations: B of every permutation test.
        seed: of all resampling.

    Returns:
        Plain numbers and lists. A control has no stride of its own: its gap_folded is the largest
        over the divisors of M, and p_known_stride and the straddle-free gap are None.
    """
    correct, position = run.tables(condition)
    profile = accuracy_profile(correct, seed=seed)
    gap = estimate_gap(correct, seed=seed)
    scan = scan_periods(
        correct,
        position,
        permutations=permutations,
        nested_permutations=min(NESTED, max(permutations, 99)),
        seed=seed,
    )
    residues, stride = correct.shape[1], run.stride
    folded = {p: float(np.ptp(profile.accuracy.reshape(-1, p).mean(0))) for p in divisors(residues)}
    block: dict[str, Any] = {
        "num_documents": len(correct),
        "residues": residues,
        "accuracy": profile.accuracy,
        "accuracy_low": profile.low,
        "accuracy_high": profile.high,
        "mean": profile.mean,
        "mean_low": profile.mean_low,
        "mean_high": profile.mean_high,
        "worst": profile.worst,
        "worst_low": profile.worst_low,
        "worst_high": profile.worst_high,
        "gap": gap.raw,
        "gap_low": gap.low,
        "gap_high": gap.high,
        "gap_corrected": gap.corrected,
        "gap_null": gap.null_expectation,
        "gap_folded": folded.get(stride or 0),
        "period": scan.period,
        "p_value": scan.p_value,
        "p_known_stride": None,
        "permutations": permutations,
        "scan": {
            "periods": list(scan.periods),
            "statistic": scan.statistic,
            "p_each": scan.per_period_p,
            "p_adjusted": scan.adjusted_p,
            "null_quantile": scan.null_quantile,
            "level": scan.level,
        },
        **dict.fromkeys(f"gap_straddle_free{end}" for end in ("", "_low", "_high", "_corrected")),
        "straddle_free_phases": list(run.straddle_free_phases()),
    }
    if stride is None:
        block["gap_folded"] = max(folded.values(), default=None)
        return block
    if 2 <= stride <= residues:
        test = known_period_test(correct, position, stride, permutations=permutations, seed=seed)
        block["p_known_stride"] = test.p_value
    if stride in folded and len(run.straddle_free_phases()) >= 2:
        free = estimate_gap(correct, period=stride, phases=run.straddle_free_phases(), seed=seed)
        block |= {
            "gap_straddle_free": free.raw,
            "gap_straddle_free_low": free.low,
            "gap_straddle_free_high": free.high,
            "gap_straddle_free_corrected": free.corrected,
        }
    return block


def _chance(config: dict[str, Any]) -> float | None:
    """Accuracy without a lookup, see `TaskConfig.guess_accuracy`; None for another task."""
    names = [field.name for field in dataclasses.fields(TaskConfig)]
    if "num_records" not in config:
        return None
    return TaskConfig(**{name: config[name] for name in names if name in config}).guess_accuracy


def summarize_run(
    run: Run, *, permutations: int = 9999, other_permutations: int = 1999, seed: int = 0
) -> dict[str, Any]:
    """Numbers of one run; what summarize does for each.

    Args:
        run: the run.
        permutations: B for prefix padding.
        other_permutations: B for the other conditions, at most `permutations`.
        seed: of all resampling.

    Returns:
        One entry of the summary's "runs".
    """
    chance = _chance(run.config)
    meta = run.results[PRIMARY].meta
    entry: dict[str, Any] = {
        "name": run.name,
        "variant": run.variant.label,
        "signature": run.variant.signature,
        "differences": list(run.variant.differences),
        "control": run.is_control,
        "recipe": run.recipe,
        "window": run.window,
        "stride": run.stride,
        "seed": run.seed,
        "val_loss": run.val_loss,
        **dict(zip(("train_seconds", "compile_seconds"), run.training_seconds(), strict=True)),
        **summarize_evaluation(run, permutations=permutations, seed=seed),
        "chance": chance,
    }
    entry["verdict"] = verdict(entry, chance, run.is_control)
    entry["in_sequence"] = None
    if "in_sequence" in run.results:
        count = min(permutations, other_permutations)
        block = summarize_evaluation(run, "in_sequence", permutations=count, seed=seed)
        entry["in_sequence"] = block | {"verdict": verdict(block, chance, run.is_control)}
    entry["gates"] = summarize_gates(run)
    entry |= {name: meta.get(name) for name in ("moments", "checkpoint_step", "created")}
    entry |= {"versions": meta.get("versions", {}), "config": run.config}
    return plain(entry)


def summarize_gates(run: Run) -> list[dict[str, Any]] | None:
    """Concentration and mass by phase of every layer and branch; None without captures."""
    if run.is_control or not run.gates_path.exists():
        return None
    try:
        gates = load_gates(run.gates_path)
    except ValueError as error:
        _log.warning("gate captures are left out: %s", error)
        return None
    rows = []
    for layer, branches in sorted(gates.layers.items()):
        for branch, values in sorted(branches.items()):
            static, per_window = concentration(values)
            rows.append(
                {
                    "layer": layer,
                    "branch": branch,
                    "static": static,
                    "per_window": per_window,
                    "mass_by_phase": gate_mass_by_phase(values, gates.geometry).T,
                }
            )
    return rows


def plain(value: Any) -> Any:
    """Turns arrays, numpy numbers and what is not finite into strict JSON."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return round(float(value), 6) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def summarize(
    runs: Sequence[Run],
    *,
    permutations: int = 9999,
    other_permutations: int = 1999,
    seed: int = 0,
    wall_seconds: float | None = None,
    map_runs: Callable[..., Iterable[dict[str, Any]]] = map,
) -> dict[str, Any]:
    """Summarises runs; the content of summary.json.

    Args:
        runs: in any order.
        permutations: B for prefix padding.
        other_permutations: B for the other conditions.
        seed: of all resampling.
        wall_seconds: how long the whole job took; None if it is not known.
        map_runs: called as map(function, runs), such as the map of a process pool's executor.

    Returns:
        Strict JSON.

    Raises:
        ValueError: there is no run, or two have the same variant, recipe and seed, whatever their
            names.
    """
    if not runs:
        raise ValueError("there is no evaluated run to summarise: train and evaluate one first.")
    runs = arrange(runs)
    seen: dict[tuple, Run] = {}
    for run in runs:
        other = seen.setdefault((run.variant, run.recipe, run.seed), run)
        if other is not run:
            raise ValueError(
                f"{other.workdir} and {run.workdir} both hold {run.variant.label} with"
                f" recipe {run.recipe} and seed {run.seed}, which would count twice: move one of"
                " them away."
            )
    one = partial(
        summarize_run, permutations=permutations, other_permutations=other_permutations, seed=seed
    )
    entries = list(map_runs(one, runs))
    summary: dict[str, Any] = {
        "format": 1,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "wall_seconds": wall_seconds,
        "versions": versions(),
        "permutations": permutations,
        "statistics_seed": seed,
        "runs": entries,
        "variants": summarize_variants(entries),
    }
    summary["claims"] = [claim.as_dict() for claim in evaluate_claims(summary)]
    summary["caveats"] = caveats(summary)
    return plain(summary)
