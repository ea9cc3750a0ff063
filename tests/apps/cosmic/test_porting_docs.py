"""What docs/porting.md shows is true: its blocks check themselves."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "porting.md"


def test_the_steps_run_one_after_another(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    scope = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    # Steps 1 to 8, the sixth in two blocks.
    assert len(blocks) == 9
    assert len(scope["ipu_losses"]) == len(scope["cpu_losses"]) == 4
    assert (tmp_path / "tagger.pt").is_file()


def test_every_step_of_the_overview_has_a_section():
    text = PAGE.read_text()
    overview = re.findall(r"^\| (\d) \| ", text, flags=re.MULTILINE)
    sections = re.findall(r"^## (\d)\. ", text, flags=re.MULTILINE)
    assert overview == sections == [str(number) for number in range(1, 9)]


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target
