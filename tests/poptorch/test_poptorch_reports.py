"""Reports of programs as the original asks for them: options of the engine, and the environment."""

import pytest
import torch

import poptorch
from torchkiln.profiling import load_profile


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x):
        return poptorch.identity_loss(self.linear(x).square(), reduction="mean")


def run(options):
    model = poptorch.trainingModel(Scaled(), options)
    model._program.options = model._program.options.replace(backend="capture")
    for _ in range(4):
        model(torch.ones(2, 4))
    model.destroy()


def test_a_report_lies_in_a_folder_of_the_program(tmp_path):
    run(poptorch.Options().enableProfiling(str(tmp_path)))
    profile = load_profile(tmp_path / "training")
    assert (profile.name, profile.model, profile.training) == ("training", "Scaled", True)
    assert (tmp_path / "training" / "report.html").exists()


def test_a_name_names_the_folder(tmp_path):
    run(poptorch.Options().enableProfiling(str(tmp_path)).modelName("mine"))
    assert load_profile(tmp_path / "mine").name == "mine"


def test_the_environment_asks_for_reports(tmp_path, monkeypatch):
    text = f'{{"autoReport.all":"true","autoReport.directory":"{tmp_path}"}}'
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)
    run(poptorch.Options())
    assert load_profile(tmp_path / "training").rows


def test_the_environment_wins_over_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all":"false"}')
    run(poptorch.Options().enableProfiling(str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["nonsense", "[1]"])
def test_what_cannot_be_read_is_told_and_ignored(text, monkeypatch, caplog):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)
    assert poptorch.Options()._to_torchkiln().profile_dir is None
    assert "POPLAR_ENGINE_OPTIONS" in caplog.text
