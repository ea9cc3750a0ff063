"""What docs/checkpoints.md shows is true."""

import re
import tempfile
from pathlib import Path

from torchkiln import CheckpointStore

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_the_examples_run_one_after_another(tmp_path, monkeypatch):
    # Where the page's own `mkdtemp()` makes its folder.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scope = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert CheckpointStore(scope["store"].directory).load().facts["epoch"] == 1
