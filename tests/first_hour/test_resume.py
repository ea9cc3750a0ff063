"""A run is interrupted and continued, rightly and wrongly; each answer is one line."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from _tiny_bench import make_tiny_bench

from torchkiln.checkpoints import CheckpointStore
from torchkiln.commands._runs import read_run

MODEL = ("--checkpoint", "--model_name", "mine")


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    return make_tiny_bench(tmp_path, monkeypatch, capsys)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses(text):
    return [epoch["loss"] for epoch in json.loads(text)["epochs"]]


def hint_of(err):
    """Return the words of the command that was recommended."""
    return shlex.split(err.partition("; go on with ")[2].splitlines()[0])


def test_the_hint_after_ctrl_c_works_when_it_is_pasted(bench):
    """Nothing has to be given again, and the bits are those of a run without a break."""
    assert bench.start("--json")[0] == 0
    expected = losses(bench.out)
    code, err = bench.interrupted(*MODEL)
    assert code == 130
    python, script, *flags = hint_of(err)
    assert (python, script) == ("python", "bench.py")
    assert flags == ["--resume", "true", "--model_name", "mine"]
    code, err = bench(*flags, "--json")
    assert code == 0
    assert "continuing checkpoints/mine in epoch" in err
    assert losses(bench.out) == expected


def test_weight_updates_are_counted_as_in_the_results_of_the_run(bench):
    """The last call of an epoch may hold nothing but filler; that updates nothing."""
    name = ("--run_name", "first", "--device_iterations", "7")
    assert bench.start(*MODEL, *name)[0] == 0
    made = len(read_run(Path("runs/first")).steps)
    _, err = bench("--resume", "true", "--model_name", "mine", "--num_epochs", "3")
    assert f"in epoch 3 of 3, after {made} weight updates" in err


def test_the_hint_names_folders_that_are_not_the_usual_ones(bench):
    _, err = bench.interrupted(*MODEL, "--checkpoint_dir", "my models")
    assert hint_of(err)[2:] == [
        *("--resume", "true", "--model_name", "mine", "--checkpoint_dir", "my models")
    ]
    assert bench(*hint_of(err)[2:])[0] == 0


def test_a_resumed_run_goes_on_with_its_report(bench, tmp_path):
    bench.interrupted(*MODEL)
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "results.json").read_text())["status"] == "interrupted"
    bench("--resume", "--model_name", "mine")
    assert list((tmp_path / "runs").iterdir()) == [folder]
    assert json.loads((folder / "results.json").read_text())["status"] == "finished"


def test_a_config_file_that_names_no_run_does_not_part_it_from_its_report(bench, tmp_path):
    bench.interrupted(*MODEL)
    (folder,) = (tmp_path / "runs").iterdir()
    (tmp_path / "all.yml").write_text("run_name: null\nbatch_size: 4\n")
    assert bench("--config", "all.yml", "--resume", "--model_name", "mine")[0] == 0
    assert list((tmp_path / "runs").iterdir()) == [folder]


def test_flags_that_contradict_the_checkpoint_are_named_as_flags(bench):
    bench.interrupted(*MODEL)
    code, err = bench(
        *("--resume", "--model_name", "mine", "--batch_size", "12", "--bench.seed", "3")
    )
    assert code == 1
    assert err == (
        "bench.py: --batch_size 12 (the checkpoint has 4) and --bench.seed 3 (the checkpoint has 0)"
        " cannot change when checkpoints/mine is continued; leave that out (of config files, too), "
        "or begin anew under another --model_name\n"
    )


def test_keys_of_config_files_that_contradict_are_named_too(bench, tmp_path):
    bench.interrupted(*MODEL)
    (tmp_path / "other.yml").write_text("learning_rate: 0.5\nnum_epochs: 9\n")
    code, err = bench("--config", "other.yml", "--resume", "--model_name", "mine")
    assert code == 1
    assert "--learning_rate 0.5 (the checkpoint has 0.001) cannot change" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--readout", "add"], "--readout add (the checkpoint has mean)"),
        (["--target", "gap"], "--target gap (the checkpoint has U0)"),
        (["--limit", "20"], "--limit 20 (the checkpoint has null)"),
        (["--use_qm9_energy", "false"], "--use_qm9_energy false (the checkpoint has true)"),
        (
            ["--options", "{precision: bfloat16}"],
            "--dataset_factory.options.precision bfloat16 (the checkpoint has null)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:this CPU has no bfloat16 arithmetic")
def test_what_shows_only_when_the_run_is_built_is_named_as_a_flag_too(
    bench,
    flags,
    said,
):
    bench.interrupted(*MODEL)
    code, err = bench("--resume", "--model_name", "mine", *flags)
    assert code == 1
    assert said in err
    assert "slots" not in err


def test_flags_that_change_no_number_are_free(bench, tmp_path):
    bench.interrupted(*MODEL)
    free = [
        "--output_dir",
        "elsewhere",
        "--run_name",
        "second",
        "--backend",
        "capture",
        "--verbose",
    ]
    code, _ = bench("--resume", "--model_name", "mine", *free, "--num_workers", "0", "--json")
    assert code == 0
    assert (tmp_path / "elsewhere/second/results.json").is_file()


def test_spelling_out_what_the_checkpoint_has_is_no_contradiction(bench):
    bench.interrupted(*MODEL)
    same = ["--readout", "mean", "--target", "U0", "--per_atom", "true", "--batch_size", "4"]
    assert bench("--resume", "--model_name", "mine", *same)[0] == 0


def test_options_of_the_program_are_taken_over_and_compared_one_by_one(bench):
    bench.interrupted(*MODEL, "--options", "{reduction: sum, check_finite: true}")
    again = ["--resume", "--model_name", "mine"]
    code, err = bench(*again, "--dataset_factory.options.reduction", "mean")
    assert code == 1
    assert "--dataset_factory.options.reduction mean (the checkpoint has sum)" in err
    assert bench(*again, "--json")[0] == 0
    options = json.loads(bench.out)["settings"]["dataset_factory"]["options"]
    assert (options["reduction"], options["check_finite"]) == ("sum", True)


def test_more_epochs_go_on(bench):
    assert bench.start(*MODEL)[0] == 0
    assert bench("--resume", "--model_name", "mine", "--num_epochs", "3", "--json")[0] == 0
    assert len(losses(bench.out)) == 3


@pytest.mark.parametrize(("flags", "asked"), [([], 2), (["--num_epochs", "1"], 1)])
def test_no_more_epochs_say_that_the_run_is_complete(bench, flags, asked):
    bench.start(*MODEL, "--run_name", "first", "--json")
    shown = bench.out
    code, err = bench("--resume", "--model_name", "mine", "--json", *flags)
    assert code == 0
    assert err == (
        f"checkpoints/mine is complete: 2 epochs done, --num_epochs {asked} asks for no more; "
        "--num_epochs 3 would go on\nreport: runs/first/report.html\n"
    )
    assert json.loads(bench.out)["epochs"] == json.loads(shown)["epochs"]


def test_a_complete_run_is_validated_if_that_is_asked_for_now(bench):
    bench.start(*MODEL, "--json")
    assert json.loads(bench.out)["test"] is None
    again = ["--resume", "--model_name", "mine", "--json", "--validation", "true"]
    code, err = bench(*again, "--unit", "Ha")
    assert code == 0
    assert "checkpoints/mine is complete: 2 epochs of 2 done" in err
    result = json.loads(bench.out)
    assert result["test"]["mae"] > 0
    assert result["dataset"]["unit"] == "Ha"
    _, err = bench(*again)  # now there is nothing left to do
    assert "--num_epochs 3 would go on" in err
    assert json.loads(bench.out)["test"] == result["test"]


def test_flags_that_contradict_a_complete_run_are_named_too(bench):
    bench.start(*MODEL)
    code, err = bench("--resume", "--model_name", "mine", "--readout", "add")
    assert code == 1
    assert "--readout add (the checkpoint has mean)" in err


def test_references_that_another_processor_fits_a_little_differently_are_the_same(bench, tmp_path):
    """Least squares differ in the last digits between processors; data that differ do not."""
    bench.interrupted(*MODEL)
    store = CheckpointStore(tmp_path / "checkpoints/mine")
    tensors, facts = store.load()
    for transform in (facts["transform"], facts["identity"]["transform"]):
        for element in transform["references"]:
            transform["references"][element] *= 1 + 3e-14
        transform["mean"] += 3e-14
    store.save(tensors, facts)
    assert bench("--resume", "--model_name", "mine")[0] == 0


def test_references_of_other_data_are_not_the_same(bench, tmp_path):
    bench.interrupted(*MODEL)
    store = CheckpointStore(tmp_path / "checkpoints/mine")
    tensors, facts = store.load()
    facts["identity"]["transform"]["mean"] += 1e-4
    store.save(tensors, facts)
    code, err = bench("--resume", "--model_name", "mine")
    assert code == 1
    assert "transform.mean was" in err


def test_other_splits_of_the_same_sizes_are_noticed_where_nothing_is_fitted(bench, tmp_path):
    """A run that goes on with them would train on what it is tested by."""
    atoms = "O 0 0 0\nH 0 0.7 0.6\nH 0 -0.7 0.6\n"
    frames = [f"3\nProperties=species:S:1:pos:R:3 energy={n}\n{atoms}" for n in range(20)]
    (tmp_path / "water.extxyz").write_text("".join(frames))
    for name, first in (("one", 0), ("two", 4)):
        order = [(first + n) % 20 for n in range(20)]
        parts = {"train": order[:16], "validation": order[16:18], "test": order[18:]}
        (tmp_path / f"{name}.json").write_text(json.dumps(parts))
    own = ("--root", "water.extxyz", "--target", "energy", "--splits", "one.json")
    plain = ("--references", "none", "--per_atom", "false", "--use_standardized_energy", "false")
    assert bench.start(*MODEL, *own, *plain)[0] == 0
    again = ("--resume", "--model_name", "mine", "--num_epochs", "3")
    code, err = bench(*again, "--splits", "two.json")
    assert code == 1
    assert "--splits two.json (the checkpoint has one.json)" in err
    store = CheckpointStore(tmp_path / "checkpoints/mine")
    tensors, facts = store.load()
    del (
        facts["identity"]["target_rms"],
        facts["identity"]["positions_rms"],
    )  # as in earlier versions
    store.save(tensors, facts)
    assert bench(*again)[0] == 0


def test_structures_that_were_edited_meanwhile_are_noticed(bench, tmp_path):
    def write(bond):
        atoms = f"O 0 0 0\nH 0 {bond} 0.6\nH 0 -{bond} 0.6\n"
        frames = [f"3\nenergy={n}\n{atoms}" for n in range(20)]
        (tmp_path / "water.extxyz").write_text("".join(frames))

    write(0.7)
    assert bench.start(*MODEL, "--root", "water.extxyz", "--target", "energy")[0] == 0
    again = ("--resume", "--model_name", "mine", "--num_epochs", "3")
    write(0.75)
    code, err = bench(*again)
    assert code == 1
    assert "positions_rms" in err
    write(0.7)
    assert bench(*again)[0] == 0


def test_a_complete_run_whose_report_is_lost_gets_it_again(bench, tmp_path):
    bench.start(*MODEL)
    shutil.rmtree(tmp_path / "runs")
    code, err = bench("--resume", "--model_name", "mine")
    assert code == 0
    assert "checkpoints/mine is complete: 2 epochs of 2 done" in err
    assert list((tmp_path / "runs").glob("*/results.json"))


def test_a_name_that_does_not_exist_is_said_with_those_that_do(bench):
    bench.start(*MODEL)
    code, err = bench("--resume", "--model_name", "mina")
    assert code == 1
    assert "there is no checkpoint of 'mina' in checkpoints to resume: there are mine" in err


def test_a_checkpoint_of_which_nothing_is_whole_is_said_at_once(bench, tmp_path):
    bench.start(*MODEL)
    for path in (tmp_path / "checkpoints/mine").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    code, err = bench("--resume", "--model_name", "mine")
    assert code == 1
    assert err.startswith("bench.py: every checkpoint in checkpoints/mine is damaged")


def test_checkpoints_of_before_settings_were_used_still_resume(bench, tmp_path):
    """Their report has no name, and their settings may lack some and hold others."""
    bench.interrupted(*MODEL)
    store = CheckpointStore(tmp_path / "checkpoints/mine")
    tensors, facts = store.load()
    facts["settings"]["run_name"] = None
    facts["settings"]["of_another_version"] = 3
    del facts["settings"]["bench"]["ema_decay"], facts["settings"]["dataset_factory"]["unit"]
    del facts["parameters"]
    # Your own molecules were called QM9, and so were the units of targets of the same name.
    facts["identity"]["dataset"] |= {"name": "QM9", "unit": "eV"}
    facts["identity"]["transform"]["unit"] = facts["transform"]["unit"] = "eV"
    store.save(tensors, facts)
    code, _ = bench("--resume", "--model_name", "mine", "--json")
    assert code == 0
    assert len(losses(bench.out)) == 2
    assert json.loads(bench.out)["dataset"]["unit"] == "eV"
