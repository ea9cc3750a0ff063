"""What the README shows is true."""

import re
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

README = Path(__file__).parents[1] / "README.md"


def test_the_first_example_trains(monkeypatch, tmp_path):
    code, _ = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    monkeypatch.setenv("HOME", str(tmp_path))
    data = TensorDataset(torch.randn(2 * 8 * 64, 784), torch.randint(0, 10, (2 * 8 * 64,)))
    scope = {"dataset": data}
    exec(compile(code, str(README), "exec"), scope)
    scope["loader"].terminate()
    assert scope["loss"].isfinite()
    assert scope["optimizer"].state[scope["model"].layers[0].weight]["step"] == 16


def test_every_page_that_is_linked_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
