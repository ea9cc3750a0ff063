"""What the README shows is true."""

import re

import pytest
from _documents import README, ROOT, blocks_of

TEXT = README.read_text()


def test_the_first_example_trains(monkeypatch, capsys):
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    scope: dict = {}
    exec(compile(blocks_of(README)[0], str(README), "exec"), scope)
    assert scope["program"].num_compiles == 1
    assert scope["optimizer"].state[scope["model"].layers[0].weight]["step"] == 300
    assert float(re.fullmatch(r"loss (\S+)\n", capsys.readouterr().out)[1]) < 0.1


def test_the_first_example_is_short():
    lines = [line for line in blocks_of(README)[0].splitlines() if line.strip()]
    assert len(lines) <= 20


def test_every_page_that_is_linked_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_page_of_the_documentation_is_linked():
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages - set(re.findall(r"\]\(([^)#:]+)\)", TEXT)) == set()


def test_the_speed_table_is_that_of_the_kept_results():
    import runpy

    ratios = runpy.run_path(str(ROOT / "docs" / "make_readme_figure.py"))["ratios"]()
    table = TEXT.split("## Speed")[1].split("\n## ")[0]
    shown = re.findall(r"^\| [^|]+ \| ([\d.]+)x \| ([\d.]+)x \|$", table, re.MULTILINE)
    expected = [(f"{r['eager']:.2f}", f"{r['torch.compile']:.2f}") for r in ratios.values()]
    assert shown == expected


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", TEXT))
    assert {"install", "bench", "test"} <= named <= targets


@pytest.mark.parametrize("word", ["CUDA is untested", "Graphcore", "IPUs", "static"])
def test_what_a_newcomer_must_know_is_said(word):
    assert word in TEXT
