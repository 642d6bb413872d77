# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Phase sensitivity with uncertainty: accuracy per residue, gaps, and tests of periods.

All functions take a crossed design: D documents, each seen once at all M residues of the target
position. numpy and scipy only.
"""

from phasejax.statistics.gap import Gap, estimate_gap
from phasejax.statistics.intervals import AccuracyProfile, accuracy_profile, wilson
from phasejax.statistics.periodicity import PeriodTest, known_period_test
from phasejax.statistics.resampling import bootstrap_means
from phasejax.statistics.scan import PeriodScan, scan_periods
from phasejax.statistics.simulate import DEAD_PHASE, draw_correct, draw_positions

__all__ = [
    "DEAD_PHASE",
    "AccuracyProfile",
    "Gap",
    "PeriodScan",
    "PeriodTest",
    "accuracy_profile",
    "bootstrap_means",
    "draw_correct",
    "draw_positions",
    "estimate_gap",
    "known_period_test",
    "scan_periods",
    "wilson",
]
