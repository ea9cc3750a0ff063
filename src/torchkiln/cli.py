"""The `torchkiln` command. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torchkiln.commands._data import (
    data_clear,
    data_cosmic,
    data_fashion_mnist,
    data_list,
    data_qm9,
    data_sample,
    data_water,
)
from torchkiln.commands._looking import (
    devices,
    monitor,
    profile_diff,
    profile_merge,
    profile_show,
)
from torchkiln.core import OptionsError, __version__
from torchkiln.core._near_miss import did_you_mean
from torchkiln.core._progress import say
from torchkiln.training import ExitCode
from torchkiln.training._exit_codes import run_command


def bench_steps(
    workloads: list[str] = ["gcn", "cnn"],  # noqa: B006 - read by the command line, never changed
    repeats: int = 5,
    seconds: float = 0.5,
    threads: int | None = None,
    compare_compile: bool = False,
    warm_start: bool = True,
    json: Path | None = None,
) -> None:
    """Train small models with plain PyTorch and with Torchkiln, and show the times side by side.

    Args:
        workloads: Which models: cnn, gcn, mlp, transformer.
        repeats: Interleaved rounds; the median is shown.
        seconds: How long each contender runs per round.
        threads: Threads to use, each pinned to a core; default: all cores.
        compare_compile: Also measure torch.compile with a fused optimiser.
        warm_start: Also measure the first step of a second process, which finds the cache.
        json: Also write the figures to this file.
    """
    from torchkiln.apps._command_line import fix_threads

    fix_threads(threads)
    from torchkiln.apps.steps import WORKLOADS, print_report, run_step_benchmark, write_report

    for name in workloads:
        if name not in WORKLOADS:
            otherwise = f"choose from {', '.join(WORKLOADS)}"
            near = did_you_mean(name, WORKLOADS, otherwise=otherwise)
            raise OptionsError(f"unknown workload {name!r}; {near}")
    say(f"Training {', '.join(workloads)}, about a minute each")
    contenders = ["eager", *(["compile"] if compare_compile else []), "torchkiln"]
    report = run_step_benchmark(
        workloads, contenders=contenders, repeats=repeats, seconds=seconds, warm_start=warm_start
    )
    print_report(report)
    if json is not None:
        write_report(report, json)
        say(f"wrote {json}")


def cache_list(directory: Path | None = None) -> None:
    """List the executables in the cache, most recently used first.

    Args:
        directory: The cache directory; default: POPTORCH_CACHE_DIR, or else where the benchmark
            keeps its executables.
    """
    from torchkiln.commands._cache import list_cache
    from torchkiln.core import default_cache_dir

    list_cache(directory or default_cache_dir())


def cache_clear(directory: Path | None = None) -> None:
    """Delete every executable in the cache.

    Args:
        directory: The cache directory; default: POPTORCH_CACHE_DIR, or else where the benchmark
            keeps its executables.
    """
    from torchkiln.commands._cache import clear_cache
    from torchkiln.core import default_cache_dir

    clear_cache(directory or default_cache_dir())


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that completes commands, flags and values when you press Tab.

    For example: source <(torchkiln completion bash)

    Args:
        shell: Which shell: bash, zsh or fish. It may stand alone, without --shell.
    """
    from torchkiln.commands._completion import completion_script

    sys.stdout.write(completion_script(shell, _COMMANDS))


def doctor(json: bool = False) -> None:
    """Tell what Torchkiln finds here: versions, devices, threads, compiler, caches.

    Args:
        json: Print the findings as one JSON record instead of a table.
    """
    from torchkiln.commands._doctor import print_diagnosis, print_diagnosis_record

    if json:
        print_diagnosis_record()
    else:
        print_diagnosis()


def fit(
    program: str,
    limit: str | None = None,
    recompute: str | None = None,
    profile_dir: Path | None = None,
    json: Path | None = None,
    stages: int | None = None,
    profile: Path | None = None,
) -> int:
    """Predict the memory of a program before it runs, and say what to do if it does not fit.

    For example: torchkiln fit train.py:make --limit 8GB

    The exit code is 0 if the program fits, and 1 if it does not.

    Args:
        program: file.py:function or package.module:function, which may stand alone, without
            --program. The function takes nothing and returns two things: a program, made by
            training_model or inference_model, and the arguments of one call (a tuple, or a dict of
            keywords), of which only shapes and dtypes count.
        limit: The memory to fit into, Python and libraries included, for example 8GB; default: what
            is free on this machine.
        recompute: Predict for this options.recompute: auto, or names of modules with commas
            between them.
        profile_dir: Also write a report of the calls and the memory of a step, line by line, into a
            folder in this one; nothing is run for it.
        json: Also write the figures to this file, in bytes.
        stages: Say where to cut the program into a pipeline of so many stages that take equal time,
            and what each of them needs; --limit is then the memory of one stage.
        profile: Folder of a profile of the program, whose times count for --stages; default: they
            are estimated.
    """
    from torchkiln.commands._fit import fit as run_fit

    fits = run_fit(program, limit, recompute, profile_dir, json, stages, profile)
    return ExitCode.OK if fits else ExitCode.FAILED


def plan(
    dataset: str | None = None,
    sizes: Path | None = None,
    nodes: int | None = None,
    graphs: int | None = None,
    edges: int | None = None,
    cutoff_angstrom: float | None = None,
    algorithm: Literal["best_fit", "next_fit", "lpfhp"] = "best_fit",
    picture: Path | None = None,
    save: Path | None = None,
) -> None:
    """Show how well graphs fill batches of one fixed size, for every packing algorithm.

    For example: torchkiln plan --dataset qm9 --nodes 512 --picture plan.png

    Args:
        dataset: What to plan: qm9, or the directory of a saved GraphStore.
        sizes: What to plan instead: a file of sizes, one line or entry a graph. A .csv begins with
            the names of its axes (nodes,edges); a .npy is [graphs] or [graphs, axes] or structured;
            a .npz has an array for each axis.
        nodes: Node slots of a batch; default: 512, unless --graphs is given.
        graphs: About how many graphs a batch should hold, instead of --nodes.
        edges: Edge slots of a batch; default: chosen so that both fill up together.
        cutoff_angstrom: For qm9: count edges between all atoms this close; default: bonds.
        algorithm: Which plan to draw and to save: best_fit, next_fit or lpfhp.
        picture: Also draw the plan into this file (.png, .svg, .pdf).
        save: Also write the plan to this file (.npz), for PackPlan.load.
    """
    from torchkiln.commands._plan import run_plan

    run_plan(dataset, sizes, nodes, graphs, edges, cutoff_angstrom, algorithm, picture, save)


def predict(
    files: list[str] = [],  # noqa: B006 - read by the command line, never changed
    model_name: str = "schnet",
    checkpoint_dir: Path = Path("checkpoints"),
    output: Path | None = None,
    rows: int = 50,
    backend: Literal["inductor", "capture", "eager"] | None = None,
    device: str | None = None,
) -> None:
    """Let a trained model predict the molecules in files (.xyz, .extxyz, .sdf, also .gz).

    For example: torchkiln predict --model_name schnet molecules.xyz --output predicted.csv

    Args:
        files: The files; their names may stand alone, without --files.
        model_name: Name of the checkpoint that `torchkiln bench --checkpoint true` saved.
        checkpoint_dir: Folder of all checkpoints.
        output: Also write the predictions to this file: .csv, or .extxyz with the geometries.
        rows: How many molecules the table shows at most.
        backend: How the model runs: inductor, capture or eager; default: compiled only where there
            are many molecules.
        device: Where to compute: cpu, cuda, cuda:1 and so on; default: cpu.
    """
    from torchkiln.commands._predict import predict_files

    predict_files(
        files,
        model_name,
        checkpoint_dir=checkpoint_dir,
        output=output,
        rows=rows,
        backend=backend,
        device=device,
    )


def runs_list(output_dir: Path = Path("runs"), json: bool = False) -> None:
    """List the runs in a folder, newest first.

    Args:
        output_dir: The folder of all runs.
        json: Print one JSON list instead of a table.
    """
    from torchkiln.commands._runs import list_runs

    list_runs(output_dir, as_json=json)


def runs_show(name: str | None = None, output_dir: Path = Path("runs"), json: bool = False) -> None:
    """Print the closing table of a run again.

    For example: torchkiln runs show first

    Args:
        name: The run, which may stand alone, without --name: a folder below output_dir, or a path.
        output_dir: The folder of all runs.
        json: Print the run as one JSON record instead.
    """
    from torchkiln.commands._runs import show_run

    show_run(name, output_dir, as_json=json)


def runs_compare(
    names: list[str] = [],  # noqa: B006 - read by the command line, never changed
    output_dir: Path = Path("runs"),
    output: Path | None = None,
) -> None:
    """Show runs side by side: settings that differ, figures, and a page with their curves.

    For example: torchkiln runs compare first second --output compare.html

    Args:
        names: The runs, which may stand alone, without --names: folders below output_dir, or paths.
        output_dir: The folder of all runs.
        output: The page to write; default: compare.html in output_dir.
    """
    from torchkiln.commands._runs import compare_runs

    compare_runs(names, output_dir, output)


def models_list(checkpoint_dir: Path = Path("checkpoints"), json: bool = False) -> None:
    """List the trained models in a folder, newest first; damaged ones are named as such.

    Args:
        checkpoint_dir: The folder of all checkpoints.
        json: Print one JSON list instead of a table.
    """
    from torchkiln.commands._models import list_models

    list_models(checkpoint_dir, as_json=json)


_COMMANDS = {
    "bench": {
        "_help": "Train SchNet on QM9 or water clusters; `bench cosmic` trains CosmicTagger, "
        "`bench steps` times small models",
        "steps": bench_steps,
    },
    "cache": {
        "_help": "List or clear the executable cache",
        "list": cache_list,
        "clear": cache_clear,
    },
    "completion": completion,
    "data": {
        "_help": "Prepare, check, list and clear datasets",
        "qm9": data_qm9,
        "water": data_water,
        "fashion_mnist": data_fashion_mnist,
        "cosmic": data_cosmic,
        "sample": data_sample,
        "list": data_list,
        "clear": data_clear,
    },
    "devices": devices,
    "doctor": doctor,
    "fit": fit,
    "models": {"_help": "List trained models", "list": models_list},
    "monitor": monitor,
    "plan": plan,
    "predict": predict,
    "profile": {
        "_help": "Show and compare profiles: where the time and the memory of steps and runs go",
        "show": profile_show,
        "diff": profile_diff,
        "merge": profile_merge,
    },
    "runs": {
        "_help": "List, show and compare runs",
        "list": runs_list,
        "show": runs_show,
        "compare": runs_compare,
    },
    # The same by a shorter name.
    "top": monitor,
}

_PROG = "torchkiln"
# The parameter that words without a flag belong to.
_WORDS_FOR = {
    "torchkiln completion": "shell",
    "torchkiln fit": "program",
    "torchkiln predict": "files",
    "torchkiln profile diff": "paths",
    "torchkiln profile merge": "directory",
    "torchkiln profile show": "path",
    "torchkiln runs compare": "names",
    "torchkiln runs show": "name",
}
_DESCRIPTION = "Torchkiln: shape freely, fire once. Whole training steps, compiled once."
# What follows `torchkiln bench`, if it is not the benchmark of `bench.py` with its flags.
_BENCHES = ("steps",)


def main(args: list[str] | None = None) -> int:
    """Run the command line; errors that name a remedy are printed without a traceback."""
    given = sys.argv[1:] if args is None else args
    # Up to two words are the command; errors are told in its name.
    prog = " ".join([_PROG, *_command_words(given)])
    return run_command(lambda: _run(given), prog, "use smaller batches")


def _command_words(args: list[str]) -> list[str]:
    """Return the words at the beginning that name a command that there is."""
    words: list[str] = []
    node: Any = _COMMANDS
    for arg in args:
        if not isinstance(node, dict) or arg == "_help" or arg not in node:
            break
        node = node[arg]
        words.append(arg)
    return words


def _run(args: list[str]) -> int:
    if args[:2] == ["bench", "cosmic"]:
        from torchkiln.apps.cosmic import main as cosmic

        return cosmic(args[2:], prog="torchkiln bench cosmic")
    if args[:1] == ["bench"] and args[1:2] not in [[name] for name in _BENCHES]:
        from torchkiln.apps.schnet import main as bench

        return bench(args[1:], prog="torchkiln bench")
    if args[:1] in (["--version"], ["version"]):
        print(f"{_PROG} {__version__}")
        return 0
    from torchkiln.commands._dispatch import find_command, group_help, run_function

    called = find_command(_COMMANDS, args, _PROG)
    if not isinstance(called.target, Mapping):
        words_for = _WORDS_FOR.get(called.prog, "")
        return run_function(called.target, called.args, called.prog, words_for)
    # Without a command there is nothing to do: the same text, but on standard error.
    description = str(called.target.get("_help", _DESCRIPTION))
    asked = bool(called.args)
    print(group_help(called.target, called.prog, description), file=None if asked else sys.stderr)
    return 0 if asked else ExitCode.USAGE


if __name__ == "__main__":
    sys.exit(main())
