"""What docs/checkpoints.md shows is true."""

import re
from pathlib import Path

from torchkiln import CheckpointStore

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_the_examples_run_one_after_another(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path / "store"))
    scope = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert CheckpointStore(tmp_path / "store").load().facts["epoch"] == 1
