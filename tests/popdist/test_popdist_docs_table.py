"""docs/popdist.md lists every public name and every flag, and its examples run in two instances."""

import inspect
import re
import sys
from pathlib import Path

import pytest
from _documents import blocks_of
from launching import command

import popdist.poptorch
from torchkiln.commands._poprun_flags import _OWN, _WITHOUT_EFFECT, HELP, VERSION

PAGE = Path(__file__).parents[2] / "docs" / "popdist.md"
POPRUN = "import sys; from torchkiln.commands._poprun import poprun; sys.exit(poprun())"


def read_tables():
    tables, heading = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip()
        row = re.match(r"\| `([^`]+)` \| (works|differs|recorded) \|", line)
        if row:
            names = tables.setdefault(heading, {})
            assert row[1] not in names, f"{row[1]} is listed twice under {heading}"
            names[row[1]] = row[2]
    return tables


TABLES = read_tables()


@pytest.mark.parametrize("module", [popdist, popdist.poptorch], ids=lambda one: one.__name__)
def test_every_public_name_is_listed_and_nothing_else(module):
    assert set(TABLES[module.__name__]) == set(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        assert isinstance(value, str) or inspect.getdoc(value), name


def test_every_flag_is_listed_with_whether_it_counts():
    listed = TABLES["poprun"]
    assert {flag for flag in listed if listed[flag] == "recorded"} == set(_WITHOUT_EFFECT)
    assert {flag for flag in listed if listed[flag] != "recorded"} == set(_OWN) - {HELP, VERSION}


def test_the_examples_run_in_two_instances(tmp_path):
    """test_documents.py runs them in one process."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks_of(PAGE)))
    words = [sys.executable, "-c", POPRUN, "--num-instances=2", "--num-replicas=6"]
    with command([*words, "python3", str(script)], {"PYTHONUNBUFFERED": ""}) as running:
        done = running.wait(timeout_s=60).ok()
    assert sorted(done.stdout.splitlines()) == ["mean 6.0", "mean 6.0", "replicas: 6"]
