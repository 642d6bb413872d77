# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import base64
import copy
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from phasejax.analysis import plots, tables
from phasejax.analysis.figures import ORANGE, grid, save_figure, style, to_svg
from phasejax.analysis.hero import hero_figure
from phasejax.analysis.report import render, slug, write_report
from phasejax.analysis.runs import load_runs, read_run
from phasejax.analysis.seeds import summarize_variants
from phasejax.analysis.verdicts import AT_CEILING, NO_PERIOD

MAX_FIGURE_BYTES = 60_000


class Page(HTMLParser):
    """Text, images and addresses of a page; complains about tags that do not close."""

    VOID = {"meta", "img", "br", "link", "input"}

    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.images, self.addresses, self.ids = [], [], [], [], set()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "img":
            self.images.append(attributes)
        self.ids.add(attributes.get("id"))
        self.addresses += [attributes[k] for k in ("href", "src") if k in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def report(quick_runs, quick_summary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("report") / "deep" / "report"
    path = write_report(load_runs(quick_runs), quick_summary, directory)
    assert path == directory / "index.html"
    return directory


@pytest.fixture(scope="module")
def page(report):
    return Page((report / "index.html").read_text())


def test_summary_is_beside_the_page(report, quick_summary):
    assert json.loads((report / "summary.json").read_text()) == quick_summary


def test_page_needs_nothing_from_outside(page):
    for address in page.addresses:
        assert address.startswith(("data:image/svg+xml;base64,", "#"))
    anchors = {address[1:] for address in page.addresses if address[0] == "#"}
    assert anchors <= page.ids
    assert "script" not in page.text


def test_images_are_described_and_whole(page, quick_summary):
    assert len(page.images) >= 3 * len(quick_summary["runs"])
    for image in page.images:
        assert image["alt"]
        svg = base64.b64decode(image["src"].split(",")[1])
        assert len(svg) < MAX_FIGURE_BYTES
        assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_figures_are_small_files(report, quick_summary):
    names = {path.name for path in (report / "figures").iterdir()}
    assert {"hero.svg", "accuracy_w8s8.svg", "scan_full_attention.svg"} <= names
    assert {"gates_w8s8_0.svg", "training_w4s4.svg", "in_sequence_w8s4.svg"} <= names
    for path in (report / "figures").iterdir():
        assert path.stat().st_size < MAX_FIGURE_BYTES


def test_page_says_what_was_run_and_shown(page, quick_summary):
    text = " ".join("".join(page.text).split())
    for entry in quick_summary["runs"]:
        assert entry["variant"] in text
    for claim in quick_summary["claims"]:
        assert claim["title"] in text
        assert claim["status"] in text
    for caveat in quick_summary["caveats"]:
        assert caveat in text
    assert "8 min 12 s" in text
    assert quick_summary["versions"]["jax"] in text
    assert "arXiv:2609.36322" in text
    assert "at the ceiling, not shown" in text
    assert text.count("DeepSeek-V4") == 5
    assert "All 26 controlled runs of the paper" in text
    assert '"rope_fraction": 0.0' in text  # the config of a run


def test_tables_scroll_inside_their_own_container(report):
    html = (report / "index.html").read_text()
    tables_, scrolls = (
        html.count("<table>"),
        len(re.findall(r'<div class="scroll"[^>]*><table>', html)),
    )
    assert tables_ == scrolls >= 5
    assert 'name="viewport" content="width=device-width' in html


def test_writing_again_replaces_old_figures(quick_runs, quick_summary, tmp_path):
    old = tmp_path / "figures" / "accuracy_old.svg"
    old.parent.mkdir()
    old.write_text("<svg/>")
    summary = quick_summary | {"runs": quick_summary["runs"][:1]}
    write_report([], summary, tmp_path)
    assert not old.exists()
    assert (tmp_path / "figures/accuracy_full_attention.svg").is_file()


def test_paper_numbers_stand_beside_ours(quick_summary):
    rows = {row["name"]: row for row in tables.run_rows(quick_summary)}
    assert rows["w8s8"]["paper_gap"] == "36.6–75.3"
    assert rows["w4s4"]["paper_loss"] == "2.469"
    assert rows["full"]["paper_gap"] == "3.1"
    assert rows["w6s6"]["paper_mean"] == tables.NONE
    assert rows["full"]["p_stride"] == tables.NONE
    in_sequence = {row["name"]: row for row in tables.run_rows(quick_summary, "in_sequence")}
    assert in_sequence["full"]["paper_mean"] == tables.NONE
    assert in_sequence["w4s4"]["paper_worst"] == "8.9"


def test_the_papers_table_has_its_intervals():
    rows = tables.paper_rows()
    assert len(rows) == 26
    assert rows[0]["prefix"] == {
        "mean": "50.6",
        "mean_interval": "[48.6, 52.5]",
        "worst": "5.7",
        "gap": "75.3",
        "gap_interval": "[72.6, 77.9]",
    }
    assert rows[-1]["prefix"]["gap_interval"] == ""
    assert rows[-1]["in_sequence"] is None


def test_several_seeds_and_recipes_and_no_extras(quick_summary):
    summary = copy.deepcopy(quick_summary)
    first, second = summary["runs"][0], copy.deepcopy(summary["runs"][0])
    second |= {"seed": 1, "mean": 0.5, "recipe": "hard", "versions": {"jax": "0"}}
    third = copy.deepcopy(second) | {"seed": 2, "in_sequence": None, "moments": None}
    summary["runs"] = [first | {"in_sequence": None}, second | {"in_sequence": None}, third]
    summary["variants"] = summarize_variants(summary["runs"])
    summary["wall_seconds"] = None
    page = Page(render(summary, {"accuracy": [], "scan": []}))
    text = " ".join("".join(page.text).split())
    assert "Between seeds" in text
    assert "seeds 0, 1, 2, recipes easy, hard" in text
    assert "full, hard, seed 2" in text
    assert "Not evaluated in this run" in text
    assert "evaluated with different versions" in text
    assert "Wall time not recorded" in text


def test_text_of_configs_is_escaped(quick_summary):
    summary = copy.deepcopy(quick_summary)
    summary["runs"][0]["name"] = "<b>full"
    assert "<b>full" not in render(summary, {"accuracy": [], "scan": [], "in_sequence": []})


# Figures.


def test_no_text_of_a_panel_is_cut_off(quick_summary):
    entry = copy.deepcopy(quick_summary["runs"][1])
    entry["scan"]["statistic"] = [2000.0] * len(entry["scan"]["statistic"])
    for title in ("W8/S8, no RoPE (easy, num records 20)", "W8/S8, " + "uniform " * 8):
        for draw in (plots.draw_scan, plots.draw_accuracy):
            with style():
                figure, (axes,) = grid(1, 1)
                draw(axes, (title, [entry]))
                canvas = FigureCanvasAgg(figure)
                canvas.draw()
                box = axes.get_tightbbox(canvas.get_renderer())
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y1 <= figure.bbox.y1


def test_equal_accuracies_have_no_worst_residue(quick_summary):
    def dots(accuracy):
        entry = quick_summary["runs"][0] | {"accuracy": accuracy}
        _, (axes,) = grid(1, 1)
        plots.draw_accuracy(axes, ("full attention", [entry]))
        return sum(line.get_color() == ORANGE for line in axes.lines)

    assert (dots([1.0] * 24), dots([1.0] * 23 + [0.5])) == (0, 1)


def test_figures_of_a_whole_summary(quick_runs, quick_summary, tmp_path):
    runs = [read_run(quick_runs / name) for name in ("full-0", "w8s8-0")]
    summary = quick_summary | {
        "runs": [e for e in quick_summary["runs"] if e["name"] in ("full", "w8s8")]
    }
    for figure in (
        plots.accuracy_figure(summary, "in_sequence", columns=2),
        plots.scan_figure(summary),
        plots.training_figure(runs),
        plots.gate_figure(summary["runs"][1]),
    ):
        size = save_figure(figure, tmp_path / "figure.png").stat().st_size
        assert 1000 < size < 2 * MAX_FIGURE_BYTES
    with pytest.raises(ValueError, match="no gate captures"):
        plots.gate_figure(summary["runs"][0])
    with pytest.raises(ValueError, match="choose .svg or .png"):
        save_figure(figure, tmp_path / "figure.gif")


def test_hero_titles_claim_only_what_was_found(quick_summary):
    def titles(summary):
        return [axes.get_title(loc="left") for axes in hero_figure(summary).axes]

    assert titles(quick_summary) == ["Recall repeats with every chunk", "The period is the stride"]
    flat = copy.deepcopy(quick_summary)
    for entry in flat["runs"]:
        entry |= {"period": None, "verdict": "no period"}
    assert titles(flat) == ["Recall by position", "Period found, by stride"]
    assert len(titles(flat | {"runs": flat["runs"][:1]})) == 2  # nothing but a control


def test_the_hero_of_runs_that_can_show_no_period_claims_none(quick_summary):
    summary = copy.deepcopy(quick_summary)
    for entry in summary["runs"]:
        verdict = NO_PERIOD if entry["control"] else AT_CEILING
        entry |= {"period": None, "verdict": verdict}
    _, right = hero_figure(summary).axes
    assert right.get_title(loc="left") == "Period found, by stride"


def test_same_figure_same_bytes(quick_summary):
    part = quick_summary | {"runs": quick_summary["runs"][:1]}
    first, second = (to_svg(plots.accuracy_figure(part)) for _ in range(2))
    assert first == second
    assert "DejaVu" not in first


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "not recorded"), (0.2, "0 s"), (61, "1 min 1 s"), (7200, "2 h")]
)
def test_duration(seconds, text):
    assert tables.duration(seconds) == text


def test_slug():
    assert slug("W8/S8, no Q/K norm (hard)") == "w8s8_no_qk_norm_hard"
