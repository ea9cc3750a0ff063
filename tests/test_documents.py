"""Every Python block of the README and of docs/ runs as it stands, and needs no name from outside.

Most pages have a test of their own, which also looks at what their examples do; the others are run
here. Blocks of a page run one after the other, as a reader would paste them.
"""

import math
import re
import struct

import pytest
from _documents import PAGES, ROOT, blocks_of, run_page

from torchkiln.datasets.fashion_mnist import _files as fashion_files
from torchkiln.datasets.water import _subsets as water_subsets

TESTS = ROOT / "tests"
# Pages with examples, and the test that runs them.
RUN_ELSEWHERE = {
    "README.md": "test_readme.py graphs/test_readme_graphs.py",
    "checkpoints.md": "checkpoints/test_checkpoint_docs.py",
    "cosmic.md": "models/test_cosmic_docs.py",
    "datasets.md": "datasets/test_docs_datasets.py",
    "graphs.md": "graphs/test_docs_graphs.py",
    "large_graphs.md": "graphs/test_cluster_docs.py",
    "memory.md": "runtime/memory/test_memory_docs.py",
    "models.md": "models/test_models_docs.py",
    "packing.md": "packing/test_packing_docs.py",
    "porting.md": "apps/cosmic/test_porting_docs.py",
    "predict.md": "commands/test_predict_command.py",
    "report.md": "report/test_report_docs.py",
    "training.md": "training/test_training_docs.py training/_documented_run.py",
}
RUN_HERE = sorted(
    {page for page in PAGES if blocks_of(page)}
    - {page for page in PAGES if page.name in RUN_ELSEWHERE}
)


@pytest.fixture(autouse=True)
def _small_world(monkeypatch, tmp_path, cache_dir):
    """An empty folder, small datasets, no native code but where a page is about it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    monkeypatch.setenv("TORCHKILN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(cache_dir))
    few = water_subsets.Subset("debug", 6, True, True, 8, 8)
    monkeypatch.setitem(water_subsets._SUBSETS, "debug", few)
    monkeypatch.setattr(fashion_files, "_DEBIAN", tmp_path / "fashion")
    write_fashion_mnist(tmp_path / "fashion")


def write_fashion_mnist(folder):
    """Write files of the right sizes in which every image is black; they take no space."""
    folder.mkdir()
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        for name, magic, sizes in (("images-idx3", 2051, (28, 28)), ("labels-idx1", 2049, ())):
            header = struct.pack(f">{2 + len(sizes)}i", magic, count, *sizes)
            with (folder / f"{part}-{name}-ubyte").open("wb") as file:
                file.write(header)
                file.truncate(len(header) + count * math.prod(sizes))


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page, monkeypatch):
    if page.name == "cache.md":  # exports native code
        monkeypatch.delenv("TORCHKILN_BACKEND")
    run_page(page)


def test_every_page_with_examples_is_run_by_some_test():
    for name, files in RUN_ELSEWHERE.items():
        assert any(page.name == name and blocks_of(page) for page in PAGES), name
        texts = "".join((TESTS / file).read_text() for file in files.split())
        assert name in texts or "README" in texts, f"{files} does not read {name}"
    assert len(RUN_HERE) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_fences_are_closed_and_links_lead_somewhere(page):
    text = page.read_text()
    assert len(re.findall(r"^```", text, re.MULTILINE)) % 2 == 0
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
