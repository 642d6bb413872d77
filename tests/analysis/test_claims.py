# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every claim on entries made by hand: one that shows it, one that does not, and none."""

import pytest

from phasejax.analysis.caveats import caveats
from phasejax.analysis.claims import (
    NOT_SHOWN,
    NOT_TESTED,
    PARTLY,
    SHOWN,
    evaluate_claims,
)
from phasejax.analysis.claims.periods import FLAT
from phasejax.analysis.paper import paper_runs
from phasejax.analysis.verdicts import (
    AT_CEILING,
    NO_PERIOD,
    NOT_LEARNED,
    extent,
    p_text,
    percent,
    tally,
)


def entry(name="w8s8", window=8, stride=8, *, differences=(), seed=0, **fields):
    numbers = {
        "period": stride,
        "p_value": 0.0001,
        "mean": 0.9,
        "worst": 0.1,
        "worst_high": 0.2,
        "gap": 0.88,
        "gap_low": 0.8,
        "gap_high": 0.92,
        "gap_null": 0.1,
        "gap_straddle_free": 0.4,
        "gap_straddle_free_low": 0.3,
        "gap_straddle_free_high": 0.5,
        "recipe": "easy",
        "gates": None,
        "in_sequence": None,
    }
    names = {"name": name, "seed": seed, "window": window, "stride": stride, "control": False}
    made = names | numbers | {"differences": list(differences)} | fields
    made.setdefault("variant", ", ".join((f"W{window}/S{stride}", *differences)))
    period = f"period {made['period']}" if made["period"] else NO_PERIOD
    made.setdefault("verdict", period)
    return made


def control(p_value=0.5, **fields):
    numbers = {"worst": 0.9, "worst_high": 0.95, "gap": 0.05, "gap_low": 0.0, "gap_high": 0.09}
    base = {"name": "full", "control": True, "variant": "full attention", "p_value": p_value}
    return entry(**base | numbers | {"window": None, "stride": None, "period": None} | fields)


def claim(key, *entries):
    return {c.key: c for c in evaluate_claims({"runs": list(entries)})}[key]


def test_every_claim_copes_with_no_runs_of_its_kind():
    assert {c.status for c in evaluate_claims({"runs": []})} == {NOT_TESTED}
    keys = [c.key for c in evaluate_claims({"runs": []})]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("controls", "status"),
    [
        ([control()], SHOWN),
        ([control(0.001, period=8)], NOT_SHOWN),
        ([control(0.03), control(seed=1)], SHOWN),  # 0.03 of two controls
        ([control(0.03, period=8)], NOT_SHOWN),
        ([control(gap_high=0.1)], NOT_SHOWN),  # the interval reaches the bound
        ([control(), entry(gap=0.09)], NOT_SHOWN),  # no flatter than a gap that has a period
        ([control(), entry(gap=0.09, period=None)], SHOWN),
        ([control(), control(gap_high=0.5, seed=1)], NOT_SHOWN),
        ([control(verdict=NOT_LEARNED)], NOT_SHOWN),
        ([control(), control(seed=1, verdict=NOT_LEARNED)], SHOWN),
        ([control(), control(recipe="hard", verdict=NOT_LEARNED)], PARTLY),
    ],
)
def test_control(controls, status):
    found = claim("control", *controls)
    assert found.status == status
    assert "full (seed" in found.text or status == SHOWN


def test_control_states_an_upper_bound():
    text = claim("control", control()).text
    assert "gap of 5.0 points where noise alone gives 10" in text
    assert "at most 9.0 points, and must be below 10, between the gaps of the paper's" in text
    text = claim("control", control(), entry(gap=0.09)).text
    assert "below 9.0, the smallest gap of a run here" in text
    assert "Not bounded so, which more documents may do: full (seed 0)" in text


def test_the_bound_of_the_control_parts_the_papers_runs():
    gaps = {True: [], False: []}
    for run in paper_runs():
        gaps[run.variant.is_control].append(run.prefix.gap)
    assert max(gaps[True]) == 6.1 < 100 * FLAT < 18.7 == min(gaps[False])


@pytest.mark.parametrize(
    ("runs", "status"),
    [
        ([entry(), entry("w4s4", 4, 4)], SHOWN),
        ([entry()], NOT_TESTED),
        ([entry(), entry("w8s8_x", differences=["no RoPE"])], NOT_TESTED),
        ([entry(), entry("w4s4_x", 4, 4, differences=["no RoPE"])], NOT_TESTED),
        ([entry(), entry("w4s4", 4, 4), entry("w2s2", 2, 2, period=None)], PARTLY),
        ([entry(), entry("w4s4", 4, 4, period=8)], NOT_SHOWN),
        ([entry(verdict=NOT_LEARNED), entry("w4s4", 4, 4)], NOT_SHOWN),
    ],
)
def test_period_moves_with_the_stride(runs, status):
    assert claim("stride", *runs).status == status


def test_a_run_at_the_ceiling_is_named_as_such():
    full = entry("w2s2", 2, 2, period=None, verdict=AT_CEILING)
    found = claim("stride", entry(), entry("w4s4", 4, 4), full)
    assert found.status == PARTLY
    assert "W2/S2: at the ceiling, not shown" in found.text


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("overlap", {"stride": 4}),
        ("uniform", {"differences": ["uniform averaging"]}),
        ("no_rope", {"differences": ["no RoPE"]}),
        ("no_qk_norm", {"differences": ["no Q/K norm"]}),
        ("no_gate_bias", {"differences": ["no gate bias"]}),
        ("kv_heads", {"differences": ["2 KV heads"]}),
        ("deepseek", {"stride": 4, "differences": ["DeepSeek-style kernel", "scalar gates"]}),
    ],
)
def test_what_the_effect_survives(key, fields):
    assert claim(key, entry(**fields)).status == SHOWN
    assert claim(key, entry(**fields), entry(seed=1, period=None, **fields)).status == PARTLY
    assert claim(key, entry(period=3, **fields)).status == NOT_SHOWN
    assert claim(key, entry(verdict=NOT_LEARNED, **fields)).status == NOT_SHOWN
    assert claim(key, entry()).status == NOT_TESTED
    twice = entry(period=2 * fields.get("stride", 8), **fields)
    assert claim(key, twice).status == NOT_SHOWN  # a multiple is not the stride
    if key != "deepseek":  # runs that differ in something else as well are not of the kind
        more = fields | {"differences": [*fields.get("differences", ()), "tied K/V"]}
        assert claim(key, entry(**more)).status == NOT_TESTED


def test_mean_hides_worst():
    assert claim("mean", control(), entry()).status == SHOWN
    low_mean = claim("mean", control(), entry(mean=0.5))
    assert low_mean.status == NOT_SHOWN
    assert "0 of 1 runs" in low_mean.text
    assert claim("mean", control(), entry(worst_high=0.6)).status == NOT_SHOWN
    assert claim("mean", control(recipe="hard"), entry()).status == NOT_TESTED
    assert claim("mean", control(verdict=NOT_LEARNED), entry()).status == NOT_TESTED
    # A control that did not learn would lower the bar.
    failed = control(seed=1, mean=0.1, worst=0.0, verdict=NOT_LEARNED)
    assert claim("mean", control(), failed, entry(mean=0.5)).status == NOT_SHOWN
    assert claim("mean", control(), failed, entry()).status == SHOWN


def test_boundary():
    assert claim("boundary", entry()).status == SHOWN
    zero = {"gap_straddle_free_low": 0.0}
    assert claim("boundary", entry(**zero)).status == NOT_SHOWN
    assert claim("boundary", entry(), entry("w4s4", 4, 4, **zero)).status == PARTLY
    assert claim("boundary", entry(stride=4)).status == NOT_TESTED
    assert claim("boundary", entry(period=None)).status == NOT_TESTED
    assert claim("boundary", entry("w2s2", 2, 2, gap_straddle_free=None)).status == NOT_TESTED


def test_in_sequence():
    same, none = ({"period": p, "verdict": f"period {p}"} for p in (8, None))
    assert claim("in_sequence", entry(in_sequence=same)).status == SHOWN
    assert claim("in_sequence", entry(in_sequence=none)).status == NOT_SHOWN
    both = entry(in_sequence=same), entry(in_sequence=none, seed=1)
    assert claim("in_sequence", *both).status == PARTLY
    assert claim("in_sequence", entry(in_sequence=same, period=None)).status == NOT_TESTED
    other = {"period": 16, "verdict": "period 16"}
    assert claim("in_sequence", entry(in_sequence=other)).status == NOT_SHOWN
    unlearned = claim("in_sequence", entry(in_sequence=same | {"verdict": NOT_LEARNED}))
    assert unlearned.status == NOT_SHOWN
    assert "w8s8 (seed 0): not learned" in unlearned.text


def test_seeds():
    apart = entry(seed=1, gap=0.5, gap_low=0.4, gap_high=0.6)
    assert claim("seeds", entry(), apart).status == SHOWN
    assert claim("seeds", entry(), entry(seed=1)).status == NOT_SHOWN
    wide = entry(seed=1, gap=0.5, gap_low=0.3, gap_high=0.85)  # its interval reaches the other's
    assert claim("seeds", entry(), wide).status == NOT_SHOWN
    assert claim("seeds", entry(), apart | {"verdict": NOT_LEARNED}).status == NOT_TESTED
    assert claim("seeds", entry(), entry(recipe="hard")).status == NOT_TESTED
    other = [entry("w8s8_sep0", recipe="separated", seed=seed) for seed in (0, 1)]
    for runs in ([entry(), apart, *other], [*other, entry(), apart]):
        found = claim("seeds", *runs)
        assert found.status == SHOWN
        assert "In 1 of 2 variants" in found.text
        assert "Widest, W8/S8 (easy): gaps of 88, 50" in found.text


def test_gates():
    rows = [{"branch": "key", "static": [7.9, 2.0]}, {"branch": "value", "static": [1.0]}]
    found = claim("gates", entry(gates=rows))
    assert found.status == SHOWN
    assert "1 of 2" in found.text
    flat = [{"branch": "key", "static": [7.9]}]
    assert claim("gates", entry(gates=flat)).status == NOT_SHOWN
    # The bar is 0.6 W: 2.4 of 4 offsets, 4.8 of 8.
    middle = [{"branch": "key", "static": [3.0]}]
    assert claim("gates", entry(gates=middle)).status == SHOWN
    assert claim("gates", entry("w4s4", 4, 4, gates=middle)).status == NOT_SHOWN
    assert claim("gates", entry(gates=middle, verdict=NOT_LEARNED)).status == NOT_TESTED
    uniform = entry(gates=flat, differences=["uniform averaging"])
    assert claim("gates", uniform).status == NOT_TESTED


def test_a_single_seed_ranks_nothing_and_says_so():
    single = caveats({"runs": [control(), entry()]})
    assert any("does not rank variants" in line for line in single)
    seeds = [make(seed=seed) for make in (control, entry) for seed in (0, 1)]
    assert not any("does not rank" in line for line in caveats({"runs": seeds}))


def test_caveats_count_what_chance_finds():
    runs = [entry(seed=seed) for seed in range(30)]
    assert any(
        "30 runs" in line and "about 1.5 of them" in line for line in caveats({"runs": runs})
    )


def test_caveats_name_runs_that_show_nothing():
    runs = [control(verdict=NOT_LEARNED), entry(), entry("w2s2", 2, 2, verdict=AT_CEILING)]
    text = "\n".join(caveats({"runs": runs}))
    assert "not the paper's task" in text
    assert "No full-attention control learned the task with recipe easy" in text
    assert "can show nothing: full (seed 0)" in text
    assert "no dip can be seen: w2s2 (seed 0)" in text


def test_tally_names_exceptions_among_seeds():
    runs = [entry(), entry(seed=1, p_value=0.002), entry(seed=2, period=None, p_value=0.3)]
    assert tally(runs[:1]) == "W8/S8: period 8 (p = 0.0001)."
    assert tally(runs) == (
        "W8/S8: period 8 in 2 of 3 (p ≤ 0.002), but w8s8 (seed 2): no period (p = 0.30)."
    )


def test_tally_keeps_recipes_apart():
    runs = [entry(), entry("w8s8_sep0", recipe="separated", period=None, p_value=0.3)]
    assert tally(runs) == (
        "W8/S8 (easy): period 8 (p = 0.0001); W8/S8 (separated): no period (p = 0.30)."
    )


def test_numbers_as_text():
    assert [percent(v) for v in (0.004, 0.0994, 0.0996, 0.5)] == ["0.4", "9.9", "10", "50"]
    assert [p_text(p) for p in (0.0001, 0.0123, 0.456)] == ["p = 0.0001", "p = 0.012", "p = 0.46"]
    assert extent([0.2, 0.1]) == "10 to 20"
    assert extent([0.2, 0.2]) == "20"
