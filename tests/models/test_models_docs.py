"""What docs/models.md shows is true."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_all_examples_run(qm9_set, capsys):
    scope: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    printed = capsys.readouterr().out
    assert "1 capture" in printed
    mask = scope["batch"].graph_mask
    indices = scope["batch"].index[mask].numpy().ravel()
    gaps_ev = scope["dataset"].restore(scope["prediction"][mask].numpy(), indices)
    assert ((gaps_ev > -20) & (gaps_ev < 40)).all()
