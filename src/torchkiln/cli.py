"""The `torchkiln` command. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Literal

from torchkiln.commands._data import (
    data_clear,
    data_cosmic,
    data_fashion_mnist,
    data_list,
    data_qm9,
    data_sample,
    data_water,
)
from torchkiln.core import OptionsError, TorchkilnError, __version__, run_stoppable


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
    from torchkiln.core._threads import pin_threads

    pin_threads(threads)
    from torchkiln.apps.steps import WORKLOADS, print_report, run_step_benchmark, write_report

    for name in workloads:
        if name not in WORKLOADS:
            raise OptionsError(f"unknown workload {name!r}; choose from {', '.join(WORKLOADS)}")
    print(f"Training {', '.join(workloads)}, about a minute each", file=sys.stderr)
    contenders = ["eager", *(["compile"] if compare_compile else []), "torchkiln"]
    report = run_step_benchmark(
        workloads, contenders=contenders, repeats=repeats, seconds=seconds, warm_start=warm_start
    )
    print_report(report)
    if json is not None:
        write_report(report, json)
        print(f"wrote {json}", file=sys.stderr)


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


def doctor() -> None:
    """Tell what Torchkiln finds here: versions, devices, threads, compiler, caches."""
    from torchkiln.commands._doctor import print_diagnosis

    print_diagnosis()


def fit(
    program: str,
    limit: str | None = None,
    recompute: str | None = None,
    json: Path | None = None,
) -> None:
    """Predict the memory of a program before it runs, and say what to do if it does not fit.

    For example: torchkiln fit train.py:make --limit 8GB

    Args:
        program: file.py:function or package.module:function, which may stand alone, without
            --program. The function takes nothing and returns two things: a program, made by
            training_model or inference_model, and the arguments of one call (a tuple, or a dict of
            keywords), of which only shapes and dtypes count.
        limit: The memory to fit into, Python and libraries included, for example 8GB; default: what
            is free on this machine.
        recompute: Predict for this options.recompute: auto, or names of modules with commas
            between them.
        json: Also write the figures to this file, in bytes.
    """
    from torchkiln.commands._fit import fit as run_fit

    run_fit(program, limit, recompute, json)


def plan(
    dataset: str | None = None,
    sizes: Path | None = None,
    nodes: int | None = None,
    graphs: int | None = None,
    edges: int | None = None,
    cutoff_angstrom: float | None = None,
    algorithm: str = "best_fit",
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
    """
    from torchkiln.commands._predict import predict_files

    predict_files(
        files,
        model_name,
        checkpoint_dir=checkpoint_dir,
        output=output,
        rows=rows,
        backend=backend,
    )


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
    "doctor": doctor,
    "fit": fit,
    "plan": plan,
    "predict": predict,
}

# What follows `torchkiln bench`, if it is not the benchmark of `bench.py` with its flags.
_BENCHES = ("steps",)
_SWITCHES = ("--force", "--dry_run")


def _with_flag_values(args: list[str]) -> list[str]:
    """Let switches stand alone: the parser wants a value for every option."""
    spelled = []
    for arg, following in itertools.pairwise([*args, ""]):
        spelled.append(arg)
        if arg in _SWITCHES and following.lower() not in ("true", "false"):
            spelled.append("true")
    return spelled


def main(args: list[str] | None = None) -> int:
    """Run the command line; errors that name a remedy are printed without a traceback."""
    return run_stoppable(lambda: _run(sys.argv[1:] if args is None else args))


def _run(args: list[str]) -> int:
    from jsonargparse import CLI

    from torchkiln.core._config_flags import check_config_flags

    if args[:2] == ["bench", "cosmic"]:
        from torchkiln.apps.cosmic import main as cosmic

        return cosmic(args[2:], prog="torchkiln bench cosmic")
    if args[:1] == ["bench"] and args[1:2] not in [[name] for name in _BENCHES]:
        from torchkiln.apps.schnet import main as bench

        return bench(args[1:], prog="torchkiln bench")
    if args[:1] == ["predict"]:
        from torchkiln.commands._predict import spell_files

        args = ["predict", *spell_files(args[1:])]
    if args[:1] == ["fit"] and args[1:2] and not args[1].startswith("-"):
        args = ["fit", "--program", *args[1:]]
    try:
        CLI(
            _COMMANDS,
            args=_with_flag_values(check_config_flags(args)),
            as_positional=False,
            prog="torchkiln",
            version=__version__,
            description="Torchkiln: shape freely, fire once. Whole training steps, compiled once.",
        )
    except RecursionError:
        print("torchkiln: a value is nested too deep to be read", file=sys.stderr)
        return 2
    except TorchkilnError as error:
        print(f"torchkiln: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
