"""What docs/cosmic.md shows is true."""

import re
from dataclasses import fields
from pathlib import Path

from torchkiln.models import UResNetSettings

PAGE = Path(__file__).parents[2] / "docs" / "cosmic.md"


def test_the_example_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    scope: dict = {}
    exec(compile(block, str(PAGE), "exec"), scope)
    assert "mean_iou" in capsys.readouterr().out
    # Every pixel of the four events was counted once.
    assert scope["counts"].sum() == 4 * 3 * 40 * 64
    scope["program"].destroy()


def test_the_table_names_every_setting_with_its_default():
    table = PAGE.read_text().split("| setting | default")[1].split("\n\n")[0]
    shown = {}
    for row in table.splitlines()[2:]:
        names, defaults = (re.sub("`", "", cell).split(", ") for cell in row.split(" | ")[:2])
        names = [name.strip("| ") for name in names]
        shown.update(zip(names, defaults * (len(names) // len(defaults)), strict=True))
    words = {True: "yes", False: "no"}
    assert shown == {
        field.name: words[field.default] if isinstance(field.default, bool) else str(field.default)
        for field in fields(UResNetSettings)
    }
