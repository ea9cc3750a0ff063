"""Every script of benchmarks/, examples/ and docs/ starts, and runs from end to end in small.

The scripts are those that are found, so a new one is run as well: it must understand `--small`, or
have its own short command below.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "examples", "docs")
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if '__name__ == "__main__"' in path.read_text() and not path.name.startswith("_")
)
# Seconds each, and nothing to install: these run in `make test`, the others in `make slow`.
QUICK = {
    "benchmarks/step.py",
    "docs/make_accuracy_figure.py",
    "docs/make_readme_figure.py",
}
KEPT = sorted(
    path
    for pattern in ("benchmarks/results/*/*", "docs/images/*", "docs/*.md")
    for path in ROOT.glob(pattern)
)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """QM9 is parsed once for all scripts."""
    return tmp_path_factory.mktemp("data_dir")


def accuracy_figure(folder: Path) -> list[str]:
    sys.path.append(str(ROOT / "tests" / "report"))
    from _sample_runs import sample_run

    from torchkiln.report._results_file import save_result

    run = sample_run(num_epochs=2, num_molecules=10)
    run.dataset["target"] = "U0"
    save_result(run, folder / "run")
    return [str(folder / "run"), "--picture", str(folder / "figure.png")]


def cosmic_figure(folder: Path) -> list[str]:
    from torchkiln.datasets.cosmic import write_larcv3
    from torchkiln.datasets.cosmic._generate import generate_event

    write_larcv3(folder / "events.h5", [generate_event(1, number) for number in range(2)])
    return [str(folder), "--picture", str(folder / "figure.png")]


def layers_table(folder: Path) -> list[str]:
    return ["--layers", "GCNConv", "--output", str(folder / "layers.md")]


def readme_figure(folder: Path) -> list[str]:
    return ["--picture", str(folder / "speed.png")]


def fashion_mnist(folder: Path) -> list[str]:
    batches = ["--batch_size", "2", "--test_batch_size", "2"]  # 25 of them are one call
    return ["--shapes", "100", "--epochs", "1", *batches, "--pictures", str(folder)]


def step(folder: Path) -> list[str]:
    # All of them are run natively by a test below.
    return ["--small", "--workloads", "mlp"]


def cosmic_tagger(folder: Path) -> list[str]:
    data = ["data.num_events=2", "data.num_aux_events=1", "data.downsample=64"]
    network = ["network.network_depth=1", "network.n_initial_filters=2"]
    run = ["run.epochs=1", "run.minibatch_size=1", "run.id=small", f"run.output_dir={folder}"]
    return [*data, *network, *run, "mode.num_pictures=1"]


def profile_a_model(folder: Path) -> list[str]:
    return ["--output_dir", str(folder)]


# What a script without --small is called with; some need a file first.
def ray_train(folder: Path) -> list[str]:
    size = ["--limit", "100", "--num_epochs", "1", "--batch_size", "2", "--num_features", "8"]
    return ["--num_workers", "1", "--output_dir", str(folder), "--backend", "eager", *size]


OWN_COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "benchmarks/step.py": step,
    "docs/make_accuracy_figure.py": accuracy_figure,
    "docs/make_cosmic_figure.py": cosmic_figure,
    "docs/make_layers_table.py": layers_table,
    "docs/make_readme_figure.py": readme_figure,
    "examples/cosmic_tagger.py": cosmic_tagger,
    "examples/fashion_mnist/pytorch_gpu.py": fashion_mnist,
    "examples/fashion_mnist/pytorch_ipu.py": fashion_mnist,
    "examples/profile_a_model.py": profile_a_model,
    "examples/ray_train.py": ray_train,
}


def run(script: str, args: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, script, *args],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{script} {' '.join(args)}\n{done.stdout}\n{done.stderr}"
    return done


def test_scripts_of_all_folders_are_found():
    assert {script.split("/")[0] for script in SCRIPTS} == set(FOLDERS)
    assert "benchmarks/step.py" in SCRIPTS
    assert QUICK | OWN_COMMANDS.keys() <= set(SCRIPTS)


def test_every_script_can_be_asked_for_help():
    """All at once, because most of the time goes into importing torch."""
    code = (
        "import contextlib, io, runpy, sys\n"
        "sys.path.insert(0, 'benchmarks'); sys.path.insert(0, 'examples/fashion_mnist')\n"
        "from torchkiln.core import _threads\n"
        "_threads.pin_threads = lambda count=None: count or 1\n"  # torch is there after the first
        "for script in sys.argv[1:]:\n"
        "    sys.argv = [script, '--help']\n"
        "    said = io.StringIO()\n"
        "    try:\n"
        "        with contextlib.redirect_stdout(said):\n"
        "            runpy.run_path(script, run_name='__main__')\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, (script, end.code)\n"
        "    assert said.getvalue().startswith('usage: '), (script, said.getvalue())\n"
        "    print(script, '--small' in said.getvalue())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *SCRIPTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split() for line in done.stdout.splitlines())
    assert list(said) == SCRIPTS
    without = [script for script, is_known in said.items() if is_known == "False"]
    assert set(without) <= OWN_COMMANDS.keys(), "neither --small nor a command of its own"


@pytest.mark.parametrize(
    "script",
    [pytest.param(script, marks=[] if script in QUICK else pytest.mark.slow) for script in SCRIPTS],
)
def test_every_script_runs_small_and_keeps_what_is_kept(script, tmp_path, data_dir):
    before = {path: path.stat().st_mtime_ns for path in KEPT}
    args = OWN_COMMANDS[script](tmp_path) if script in OWN_COMMANDS else ["--small"]
    backend = {} if script == "benchmarks/fit.py" else {"TORCHKILN_BACKEND": "capture"}
    run(script, args, TORCHKILN_DATA_DIR=str(data_dir), MPLBACKEND="agg", **backend)
    assert {path: path.stat().st_mtime_ns for path in KEPT} == before


@pytest.mark.slow
@pytest.mark.inductor
def test_the_first_table_of_the_readme_can_be_measured(tmp_path):
    """All workloads, with torch.compile and native code, as `make benchmarks` does, but briefly."""
    report = tmp_path / "step.json"
    args = ["--small", "--compare_compile", "--warm_start", "--json", str(report)]
    run("benchmarks/step.py", args, TORCHKILN_BACKEND="inductor")
    assert all(f'"{name}"' in report.read_text() for name in ("cnn", "gcn", "mlp", "transformer"))


def test_scripts_that_the_documents_name_are_there():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    documents += [*(ROOT / "examples").rglob("*.md")]
    named = re.compile(r"(?<!/)(?:benchmarks|examples|docs)/[\w/]+\.py|(?<![\w/.])(?:bench)\.py")
    missing = {
        (document.name, name)
        for document in documents
        for name in named.findall(document.read_text())
        if not (ROOT / name).is_file()
    }
    assert not missing


def test_make_benchmarks_runs_every_benchmark():
    recipe = re.search(r"^benchmarks:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    # What the loop would call, asked of the shell itself.
    shown = recipe[1].replace("$(BIN)/python $$script", "echo $script").replace("$$", "$")
    called = subprocess.run(
        ["sh", "-c", shown], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert called == [script for script in SCRIPTS if script.startswith("benchmarks/")]
