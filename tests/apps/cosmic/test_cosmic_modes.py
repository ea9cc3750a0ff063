"""The three modes from the command line."""

import json
import re
from pathlib import Path

import pytest

from torchkiln import cli
from torchkiln.apps.cosmic import main
from torchkiln.apps.cosmic._devices import CompiledDevice, make_device
from torchkiln.core import OptionsError
from torchkiln.datasets.cosmic import generate_event, write_larcv3
from torchkiln.models import UResNet2D, UResNetSettings


def test_train_writes_what_inference_reads(tiny_args, tmp_path, capsys):
    args = [*tiny_args, "run.id=first", "mode.num_pictures=1"]
    assert main([*args, "run.compute_mode=CPU"]) == 0
    trained = capsys.readouterr()
    results = json.loads((tmp_path / "first" / "results.json").read_text())
    assert len(results["steps"]["loss"]) == 3
    assert results["epochs"][0]["held_out"] == results["metrics"]
    assert f"{results['metrics']['mean_iou']:.3f}" in trained.out
    assert "6 generated events (seed 1), held out: 3 (seed 2)" in trained.err
    names = {path.name for path in (tmp_path / "first").iterdir()}
    assert names == {"checkpoint", "curves.png", "event_0.png", "results.json"}

    assert main([*args, "mode=inference", "run.compute_mode=IPU"]) == 0
    inferred = json.loads((tmp_path / "first" / "inference.json").read_text())
    assert inferred["metrics"] == pytest.approx(results["metrics"], abs=1e-3)


def test_inference_without_a_checkpoint_says_so(tiny_args, capsys):
    assert main([*tiny_args, "mode=inference"]) == 1
    assert "there is no checkpoint in" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["CPU", "IPU"])
def test_iotest_reads_a_file(tiny_args, tmp_path, capsys, mode):
    path = tmp_path / "events.h5"
    write_larcv3(path, [generate_event(0, number) for number in range(3)])
    args = [*tiny_args, "mode=iotest", "--file", str(path), f"run.compute_mode={mode}"]
    assert cli.main(["bench", "cosmic", *args]) == 0
    assert "read 2 images" in capsys.readouterr().out


def test_a_file_without_others_is_judged_by_itself(tiny_args, tmp_path, capsys):
    path = tmp_path / "events.h5"
    write_larcv3(path, [generate_event(0, number) for number in range(2)])
    assert main([*tiny_args, "--file", str(path), "mode.num_pictures=0"]) == 0
    assert "judged by the same events" in capsys.readouterr().err


def test_a_missing_file_is_an_error_of_one_line(tiny_args, capsys):
    assert main([*tiny_args, "--file", "/no/such/place"]) == 1
    assert Path("/no/such/place").name in capsys.readouterr().err


def test_fit_foretells_the_memory_of_a_step_and_runs_nothing(tiny_args, tmp_path, capsys):
    assert main([*tiny_args, "mode=fit", "run.compute_mode=IPU"]) == 0
    shown = capsys.readouterr()
    assert "2 images of 3 planes of 20 x 32" in shown.err
    assert "activations kept for backward" in shown.out
    assert "It fits" in shown.out
    assert not list(tmp_path.iterdir())


def test_fit_of_a_step_that_does_not_fit_ends_with_another_code(tiny_args, capsys, monkeypatch):
    monkeypatch.setattr("torchkiln.apps.cosmic._foretelling.available_bytes", lambda: 1000)
    assert main([*tiny_args, "mode=fit", "run.compute_mode=IPU", "--quiet"]) == 1
    shown = capsys.readouterr()
    assert "It does not fit" in shown.out
    assert shown.err == ""


def test_memory_of_plain_pytorch_cannot_be_foretold(tiny_args, capsys):
    assert main([*tiny_args, "mode=fit", "run.compute_mode=CPU"]) == 2
    assert "run.compute_mode=IPU" in capsys.readouterr().err


def test_a_script_with_a_program_of_its_own_refuses_stages(tiny):
    settings = tiny("run.compute_mode=IPU", "run.pipeline=first,upsamples.0")
    with pytest.raises(OptionsError, match="nproc-per-node 2 -m torchkiln bench cosmic"):
        make_device(settings, lambda settings: object())
    assert isinstance(make_device(settings), CompiledDevice)


def test_fit_says_where_to_cut_the_network(tiny_args, tmp_path, capsys):
    args = [*tiny_args, "run.compute_mode=IPU", "run.backend=capture", "mode=fit", "mode.stages=2"]
    assert main([*args, "mode.memory_limit=40GB"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "It fits" in shown
    assert "for each stage" in shown
    (stages,) = re.findall(r"run\.pipeline=(\S+) mode\.optimizer\.gradient_accumulation=3", shown)
    first, second = stages.split(",")
    assert first == "first"
    network = UResNet2D(
        UResNetSettings(n_initial_filters=2, network_depth=1, blocks_deepest_layer=1)
    )
    assert second in dict(network.named_modules())
    assert main([*args, "mode.memory_limit=1MB", "--quiet"]) == 1
    assert "It does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mode.stages=1"], "mode.stages must be at least 2"),
        (["mode.profile=runs"], "add mode.stages=2"),
        (["mode.memory_limit=2"], "write 2GB"),
    ],
)
def test_settings_of_fit_that_make_no_sense_are_refused(tiny_args, capsys, words, said):
    assert main([*tiny_args, "mode=fit", "run.compute_mode=IPU", *words]) == 2
    assert said in capsys.readouterr().err
