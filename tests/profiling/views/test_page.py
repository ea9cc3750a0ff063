from __future__ import annotations

import json
import re

import pytest
from _chromium import CHROMIUM, NO_CHROMIUM, start_chromium
from _sample_profiles import big_profile, hostile, never_run, one_call, small_profile, too_large

from torchkiln.profiling.graph._file import load_profile
from torchkiln.profiling.views import _write
from torchkiln.profiling.views._page import render_page
from torchkiln.profiling.views._write import write_report

MAKERS = {
    make.__name__: make
    for make in (small_profile, big_profile, never_run, too_large, one_call, hostile)
}
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The reports of all samples."""
    folder = tmp_path_factory.mktemp("profiles")
    for name, make in MAKERS.items():
        write_report(make(), folder / name)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with start_chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.mark.parametrize("name", MAKERS)
def test_all_files_are_written_and_the_values_are_the_same(name, folder):
    assert sorted(path.name for path in (folder / name).iterdir()) == [
        "profile.json",
        "profile.speedscope.json",
        "report.html",
        "trace.json",
    ]
    assert load_profile(folder / name) == MAKERS[name]()


def test_a_failure_leaves_the_older_report_whole(tmp_path, monkeypatch):
    write_report(small_profile(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(profile):
        raise RuntimeError("no page")

    monkeypatch.setattr(_write, "render_page", fail)
    with pytest.raises(RuntimeError, match="no page"):
        write_report(never_run(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", MAKERS)
def test_the_page_asks_for_nothing_and_its_data_are_json(name, folder):
    text = (folder / name / "report.html").read_text()
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert "@import" not in text
    assert "url(" not in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(data)["measured"] is (MAKERS[name]().times is not None)


def test_names_cannot_become_markup():
    text = render_page(hostile())
    assert "<script>window.broken" not in text
    assert text.count("</script>") == 3


def test_terms_are_defined_where_they_are_used_first():
    text = render_page(small_profile())
    for term in ("executable", "estimate", "roofline", "alive", "peak", "fuses"):
        assert f"<dfn>{term}</dfn>" in text, term


def test_what_was_not_run_or_planned_is_said():
    text = render_page(never_run())
    assert "Nothing was run" in text
    assert 'id="operations"' not in text
    assert "makes no plan of its memory" in render_page(one_call())
    text = render_page(too_large())
    assert "does not fit into memory" in text
    assert "Use batches of 32 instead of 64" in text


@needs_chromium
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_no_errors_no_requests_nothing_too_wide(name, width, dark, folder, browser):
    browser.look(width, dark=dark)
    path = folder / name / "report.html"
    browser.open(path)
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("window.broken") is None
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) is dark


def cells(browser, table, column):
    rows = f"document.querySelectorAll('#{table} tbody tr:not(.inner)')"
    return browser.run(f"[...{rows}].map(r => r.cells[{column}].textContent)")


def type_into(browser, place, text):
    browser.run(
        f"(() => {{ const input = document.getElementById('{place}'); input.value = {text!r};"
        "input.dispatchEvent(new Event('input')); })()"
    )


@needs_chromium
def test_the_table_shows_what_python_computed(folder, browser):
    """JavaScript writes the same figures as Python, which wrote the static tables."""
    browser.look(1280)
    for name in ("small_profile", "big_profile", "hostile"):
        browser.open(folder / name / "report.html")
        for view in ("line", "module", "operator", "phase"):
            browser.run(f"document.querySelector('input[name=view][value={view}]').click()")
            static = browser.run(
                f"[...document.querySelectorAll('.static [data-view={view}] tbody tr')]"
                ".map(r => [...r.cells].map(c => c.textContent.trim()))"
            )
            shown = browser.run(
                "[...document.querySelectorAll('#op-table tbody tr')].map(r =>"
                "[0, 1, 2, 4, 5, 6, 7].map(at => r.cells[at].textContent.replace('\u25b8', '')))"
            )
            assert len(static) >= 3
            assert shown[: len(static)] == static


@needs_chromium
def test_sorting_and_searching(folder, browser):
    browser.look(1280)
    browser.open(folder / "small_profile" / "report.html")

    def times():
        found = cells(browser, "op-table", 1)
        return [float(text.lstrip("~").replace(",", "")) for text in found]

    assert times() == sorted(times(), reverse=True)
    browser.run("document.querySelectorAll('#op-table thead button')[1].click()")
    assert times() == sorted(times())
    assert browser.run("document.querySelectorAll('#op-table th')[1].ariaSort") == "ascending"
    everything = len(times())
    type_into(browser, "op-search", "Softmax")
    assert 0 < len(times()) < everything
    assert browser.run("document.getElementById('op-count').textContent").endswith(" rows")
    type_into(browser, "op-search", "nothing has this name")
    assert times() == []
    type_into(browser, "call-search", "aten.bmm")
    assert all("bmm" in kernel for kernel in cells(browser, "call-table", 1))


@needs_chromium
def test_rows_open_to_what_they_consist_of(folder, browser):
    browser.look(1280)
    browser.open(folder / "small_profile" / "report.html")
    browser.run("document.querySelector('#op-table .toggle').click()")
    inner = browser.run("document.querySelector('#op-table .inner').textContent")
    assert "aten.addmm_backward" in inner
    browser.run("document.querySelector('#op-table .toggle').click()")
    assert browser.run("document.querySelector('#op-table .inner')") is None


@needs_chromium
def test_a_large_table_is_drawn_as_it_is_scrolled_to_and_sorts_at_once(folder, browser):
    browser.look(1280)
    browser.open(folder / "big_profile" / "report.html")
    assert len(cells(browser, "call-table", 0)) == 100
    browser.run(
        "(() => { const t = document.getElementById('call-table'); t.scrollTop = t.scrollHeight;"
        "t.dispatchEvent(new Event('scroll')); })()"
    )
    assert len(cells(browser, "call-table", 0)) >= 200
    taken_ms = browser.run(
        "(() => { const start = performance.now();"
        "document.querySelectorAll('#call-table thead button')[3].click();"
        "return performance.now() - start; })()"
    )
    assert taken_ms < 1500  # some 20 ms on a quiet machine
    num_nodes = browser.run("document.querySelectorAll('*').length")
    assert num_nodes < 12_000


@needs_chromium
def test_the_flame_graph_zooms_and_highlights_by_mouse_and_keyboard(folder, browser):
    browser.look(1280)
    browser.open(folder / "small_profile" / "report.html")

    def press(key):
        browser.run(
            "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', "
            f"{{key: '{key}', bubbles: true}}))"
        )

    def focused():
        return browser.run("document.activeElement.textContent")

    browser.run("document.querySelector('#flame .box').focus()")
    press("ArrowDown")
    assert focused() == "forward"
    press("ArrowRight")
    assert focused() == "backward"
    press("Enter")
    width = "document.activeElement.getBoundingClientRect().width"
    whole = browser.run("document.getElementById('flame').clientWidth")
    assert browser.run(width) == pytest.approx(whole, abs=2)
    assert not browser.run("document.getElementById('flame-reset').disabled")
    press("Escape")
    assert browser.run("document.getElementById('flame-reset').disabled")
    type_into(browser, "flame-search", "aten.bmm")
    assert browser.run("document.querySelectorAll('#flame .hit').length") > 0
    profile = small_profile()
    expected = sum(row.us for row in profile.rows if "aten.bmm" in row.operator)
    found = browser.run("document.getElementById('flame-found').textContent")
    assert float(found.partition(" ")[0].replace(",", "")) == pytest.approx(expected, abs=0.06)
    browser.run("document.querySelector('input[name=flame][value=line]').click()")
    assert browser.run("document.querySelectorAll('#flame .k-file').length") > 0


@needs_chromium
def test_pointing_at_the_memory_tells_the_call(folder, browser):
    browser.look(1280)
    browser.open(folder / "small_profile" / "report.html")
    browser.run(
        "(() => { const area = document.querySelector('.plot.live .area');"
        "const peak = area.querySelector('.peak').getBoundingClientRect();"
        "area.dispatchEvent(new MouseEvent('mousemove',"
        "{clientX: peak.left + peak.width / 2, clientY: peak.top})); })()"
    )
    told = browser.run("document.getElementById('tip').textContent")
    liveness = small_profile().liveness
    assert told.startswith(f"call {liveness.peak_call}: ")
    assert f"{liveness.total_bytes / 2**20:.2f} MB" in told


@needs_chromium
def test_the_page_is_readable_without_scripts_and_on_paper(folder, browser, tmp_path):
    shown = (
        "[...document.querySelectorAll('.static, .script')].map(e =>"
        "[e.classList.contains('static'), getComputedStyle(e).display !== 'none'])"
    )
    browser.look(1280, media="print")
    browser.open(folder / "small_profile" / "report.html")
    assert all(is_static == visible for is_static, visible in browser.run(shown))
    browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    text = (folder / "small_profile" / "report.html").read_text()
    plain = tmp_path / "plain.html"
    plain.write_text(re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
    browser.look(1280)
    browser.open(plain)
    assert all(is_static == visible for is_static, visible in browser.run(shown))
    assert browser.run("document.querySelectorAll('#flame .box').length") > 20
