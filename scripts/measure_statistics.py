# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how often the statistics of phasejax are wrong, on simulated crossed trials.

  python -m scripts.measure_statistics --json=docs/results/statistics.json

Reported are false alarms of the periodicity tests (5% is right, unless the row says that it fails
on purpose), power, how often the scan names the planted period or a wrong one, and how often each
end of the interval of a gap misses the true gap (2.5% at most is right), beside the lower end of a
percentile bootstrap. How long it took is in the file.
"""

import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy
from absl import flags

from phasejax import statistics
from phasejax.statistics.gap import Gap, fold
from scripts import running

_JSON = flags.DEFINE_string("json", None, "File to write the rates to.")
_EFFORT = flags.DEFINE_float("effort", 1.0, "Multiplies the simulated runs of every row.")
_SEED = flags.DEFINE_integer("seed", 0, "First seed; runs of a row take consecutive ones.")

RESIDUES = 24
PERMUTATIONS = 199
MISSES = ("misses_below", "misses_above", "percentile_misses_below")


def cosine(period: int, amplitude: float) -> np.ndarray:
    """Accuracy [P] of one cosine around one half."""
    return 0.5 + amplitude * np.cos(2 * np.pi * np.arange(period) / period)


def simulate(
    seed: int,
    profile: Any = (0.5,),
    *,
    documents: int,
    design: Any = "matched",
    trend: float = 0.0,
    document_variance: float = 0.6,
    spread: bool = False,
    edges: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Answers and positions of one simulated evaluation, each [D, M].

    With spread every document has a start of its own. One start for all is the harder case: drift
    does not average out, and neighbouring periods differ little. With edges the first four
    positions are never recalled and the last twelve always, as where the last tokens are exact.
    """
    start = np.random.default_rng(seed).integers(100, 600, documents) if spread else 480
    position = statistics.draw_positions(documents, RESIDUES, 2 * seed, start=start, design=design)
    correct = statistics.draw_correct(
        position, profile, 2 * seed + 1, document_variance=document_variance, trend=trend
    )
    if edges:
        last, first = position >= position.max() - 11, position <= position.min() + 3
        correct = (correct | last) & ~first
    return correct, position


def rejects(seed: int, period: int, remove_trend: bool = True, **options: Any) -> bool:
    """Whether the test of a known period rejects at 5%."""
    test = statistics.known_period_test(
        *simulate(seed, **options),
        period,
        permutations=PERMUTATIONS,
        seed=seed,
        remove_trend=remove_trend,
    )
    return test.p_value <= 0.05


def named(seed: int, **options: Any) -> int | None:
    """The period that the scan names."""
    counts = {"permutations": PERMUTATIONS, "nested_permutations": PERMUTATIONS}
    return statistics.scan_periods(*simulate(seed, **options), **counts, seed=seed).period


def names(seed: int, period: int | None, **options: Any) -> bool:
    """Whether the scan names this period."""
    return named(seed, **options) == period


def names_another(seed: int, period: int | None, **options: Any) -> bool:
    """Whether the scan names a period, and a wrong one (any, if there is none)."""
    return named(seed, **options) not in (None, period)


Row = tuple[str, str, int, Callable[..., bool], dict[str, Any]]


def false_alarms() -> Iterator[Row]:
    """Rows whose rate should be 5%, and two that show why the precautions are there."""
    group = "type I error"
    for accuracy in (0.5, 0.97):
        for period in (8, 7):
            case = f"period {period}, accuracy {accuracy}, strong document effects"
            options: dict[str, Any] = {"period": period, "profile": [accuracy], "documents": 30}
            yield group, case, 800, rejects, options
    for trend in (0.005, 0.01):
        for design, remove in (
            ("matched", False),
            ("matched", True),
            ("drift", True),
            ("drift", False),
        ):
            fails = design == "drift" and not remove
            case = f"trend of {100 * trend:g} points per token, "
            case += "matched moments" if design == "matched" else "depth drifts with the residue"
            case += (", trend removed" if remove else "") + " (fails on purpose)" * fails
            options = {"period": 8, "remove_trend": remove, "design": design, "trend": trend}
            options |= {"documents": 400 if fails else 100, "document_variance": 0.3}
            yield group, case, 100 if fails else 1000, rejects, options
    for spread, note in ((False, "one start"), (True, "starts spread")):
        case = f"scan of 2..24, no effect, {note}"
        yield group, case, 400, names_another, {"period": None, "documents": 60, "spread": spread}
    case = "scan of 2..24, no effect but at the first and the last positions"
    yield group, case, 400, names_another, {"period": None, "documents": 60, "edges": True}


def detections() -> Iterator[Row]:
    """Rows whose rate should be high: power at a known period and recovery by the scan."""
    for amplitude in (0.03, 0.05, 0.07):
        case = f"period 8, amplitude {amplitude}, 100 documents"
        options: dict[str, Any] = {"profile": cosine(8, amplitude), "documents": 100}
        yield "power", case, 300, rejects, {"period": 8, **options}
    group, documents = "period found", {"documents": 200}
    for period in (2, 3, 4, 5, 6, 7, 8, 12):
        case = f"cosine of period {period}, amplitude 0.07, 200 documents"
        options = {"period": period, "profile": cosine(period, 0.07), **documents}
        yield group, case, 40, names, options
    for period in (16, 24):
        case = f"one of {period} phases at 0.1 instead of 0.5, 200 documents"
        options = {"period": period, "profile": [0.1] + [0.5] * (period - 1), **documents}
        yield group, case, 40, names, options
    for spread, note in (
        (False, "one start (24 hardly differs from 23 over 3 periods)"),
        (True, "starts spread"),
    ):
        case = f"cosine of period 24, amplitude 0.07, 200 documents, {note}"
        options = {"period": 24, "profile": cosine(24, 0.07), "spread": spread, **documents}
        yield group, case, 40, names, options
    case = "period 8 with one dead phase, 200 documents"
    options = {"period": 8, "profile": statistics.DEAD_PHASE, **documents}
    yield group, case, 100, names, options
    yield group, f"{case}, other first and last positions", 100, names, {"edges": True, **options}
    for label, profile in (
        ("cosine of period 8, amplitude 0.05", cosine(8, 0.05)),
        ("one of 8 phases at 0.4 instead of 0.5", [0.4] + [0.5] * 7),
    ):
        options = {"period": 8, "profile": profile, "documents": 100, "spread": True}
        for group, hit in (("weak, found", names), ("weak, wrong", names_another)):
            yield group, f"{label}, 100 documents, starts spread", 100, hit, options


def measure_gap(profile: Any, label: str, period: int | None, runs: int, seed: int) -> dict:
    """Bias of the estimates of a gap, and how often each end misses it."""
    truth = float(np.ptp(profile))
    gaps: list[Gap] = []
    percentile = []  # lower ends of the interval that is not used
    for run in range(seed, seed + runs):
        correct, _ = simulate(run, profile, documents=200, document_variance=0.3)
        gaps.append(statistics.estimate_gap(correct, period=period, draws=300, seed=run))
        values = fold(correct.astype(float), period or RESIDUES)
        means = statistics.bootstrap_means(values, 300, run)
        percentile.append(np.quantile(np.ptp(means, axis=1), 0.025))

    def mean(name: str) -> float:
        return float(np.mean([getattr(gap, name) for gap in gaps]))

    fields = ("raw", "corrected", "null_expectation", "low", "high")
    return {
        "case": f"{label}, {f'folded to {period}' if period else f'{RESIDUES} residues'}",
        "true": truth,
        "mean": {name: mean(name) for name in fields},
        "runs": runs,
        "misses_below": sum(gap.low > truth + 1e-9 for gap in gaps),
        "misses_above": sum(gap.high < truth - 1e-9 for gap in gaps),
        "percentile_misses_below": int(sum(low > truth + 1e-9 for low in percentile)),
    }


def with_interval(count: int, runs: int) -> dict[str, float | int]:
    """A rate with its Wilson interval."""
    low, high = statistics.wilson(count, runs)
    return {
        "count": count,
        "runs": runs,
        "rate": count / runs,
        "low": float(low),
        "high": float(high),
    }


def measure(*, effort: float, seed: int) -> dict[str, Any]:
    """Runs all simulations.

    Args:
      effort: multiplies the number of runs.
      seed: first seed.

    Returns:
      What goes to the JSON file.
    """
    began = time.monotonic()
    rates = []
    for group, case, runs, hit, options in running.tracked(
        "rates", [*false_alarms(), *detections()]
    ):
        runs = max(2, round(effort * runs))
        count = sum(hit(run, **options) for run in range(seed, seed + runs))
        rates.append({"group": group, "case": case, **with_interval(count, runs)})
    profiles = {
        "null at 0.2": [0.2] * 8,
        "null at 0.5": [0.5] * 8,
        "null at 0.99": [0.99] * 8,
        "ceiling, 1.0": [1.0] * 8,
        "mild cosine at 0.5": cosine(8, 0.05),
        "mild dip at 0.2": [0.3] + [0.2] * 7,
        "mild dip at 0.99": [0.99] * 7 + [0.94],
        "dead phase": statistics.DEAD_PHASE,
    }
    gaps = [
        measure_gap(profile, label, period, max(2, round(effort * 300)), seed)
        for label, profile in running.tracked("gaps", list(profiles.items()))
        for period in (None, 8)
    ]
    return {
        "residues": RESIDUES,
        "permutations": PERMUTATIONS,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "rates": rates,
        "gaps": gaps,
    }


def show(result: dict[str, Any]) -> None:
    """Prints the rates and the gaps as two tables."""
    table = running.Table("", "case")
    for head in ("runs", "rate", "95% interval"):
        table.add_column(head, justify="right")
    for row in result["rates"]:
        interval = f"{row['low']:.1%} .. {row['high']:.1%}"
        table.add_row(row["group"], row["case"], str(row["runs"]), f"{row['rate']:.1%}", interval)
    running.Console().print(table)
    heads = ("true", "raw", "corrected", "null", "low", "high", "low misses", "high misses")
    table = running.Table("gap (points, mean of runs)")
    for head in (*heads, "percentile low misses"):
        table.add_column(head, justify="right")
    for row in result["gaps"]:
        values = [f"{100 * value:.1f}" for value in (row["true"], *row["mean"].values())]
        misses = [f"{row[kind] / row['runs']:.1%}" for kind in MISSES]
        table.add_row(row["case"], *values, *misses)
    running.Console().print(table)


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    running.check_json(_JSON.value)
    result = measure(effort=_EFFORT.value, seed=_SEED.value)
    show(result)
    running.write_json(_JSON.value, result)


if __name__ == "__main__":
    running.run(main)
