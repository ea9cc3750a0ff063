"""The `torchkiln` command. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path

from torchkiln.core import OptionsError, TorchkilnError


def bench(
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
    from torchkiln.bench._threads import pin_threads

    pin_threads(threads)
    from torchkiln.bench._step import print_report, run_step_benchmark, write_report
    from torchkiln.bench._workloads import WORKLOADS

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
        directory: The cache directory; default: POPTORCH_CACHE_DIR.
    """
    from torchkiln.commands._cache import list_cache

    list_cache(directory)


def cache_clear(directory: Path | None = None) -> None:
    """Delete every executable in the cache.

    Args:
        directory: The cache directory; default: POPTORCH_CACHE_DIR.
    """
    from torchkiln.commands._cache import clear_cache

    clear_cache(directory)


def doctor() -> None:
    """Tell what Torchkiln finds here: versions, devices, threads, compiler, caches."""
    from torchkiln.commands._doctor import print_diagnosis

    print_diagnosis()


_COMMANDS = {
    "bench": bench,
    "cache": {
        "_help": "List or clear the executable cache",
        "list": cache_list,
        "clear": cache_clear,
    },
    "doctor": doctor,
}


def main(args: list[str] | None = None) -> int:
    """Run the command line; errors that name a remedy are printed without a traceback."""
    from jsonargparse import CLI

    import torchkiln

    try:
        CLI(
            _COMMANDS,
            args=args,
            as_positional=False,
            prog="torchkiln",
            version=torchkiln.__version__,
            description="Torchkiln: shape freely, fire once. Whole training steps, compiled once.",
        )
    except TorchkilnError as error:
        print(f"torchkiln: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
