# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""From result files to tables, figures and a report. No model is needed, and none is loaded.

runs = load_runs("runs/quick")
summary = summarize(runs)
write_report(runs, summary, "report")
"""

from phasejax.analysis.claims import Claim, evaluate_claims
from phasejax.analysis.figures import save_figure
from phasejax.analysis.gates import concentration, gate_mass_by_phase
from phasejax.analysis.hero import hero_figure
from phasejax.analysis.paper import needle_rows, paper_runs, paper_runs_like
from phasejax.analysis.plots import (
    accuracy_figure,
    gate_figure,
    scan_figure,
    training_figure,
)
from phasejax.analysis.report import write_report
from phasejax.analysis.runs import Run, load_runs, read_run
from phasejax.analysis.summary import summarize, summarize_run
from phasejax.analysis.variants import Variant, variant_of
from phasejax.evals.gates import Gates, load_gates, save_gates

__all__ = [
    "Claim",
    "Gates",
    "Run",
    "Variant",
    "accuracy_figure",
    "concentration",
    "evaluate_claims",
    "gate_figure",
    "gate_mass_by_phase",
    "hero_figure",
    "load_gates",
    "load_runs",
    "needle_rows",
    "paper_runs",
    "paper_runs_like",
    "read_run",
    "save_figure",
    "save_gates",
    "scan_figure",
    "summarize",
    "summarize_run",
    "training_figure",
    "variant_of",
    "write_report",
]
