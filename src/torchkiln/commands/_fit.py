"""`torchkiln fit`: does a program fit into the memory, and what to do if it does not."""

from __future__ import annotations

import importlib
import importlib.util
import json as json_module
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.core import OptionsError, write_atomic
from torchkiln.core._progress import say
from torchkiln.core._sizes import parse_size
from torchkiln.report._memory_verdict import available_bytes, print_memory_report
from torchkiln.report._stage_verdict import print_stage_plan, program_lines, stages_to_plain

if TYPE_CHECKING:
    from torchkiln.runtime import MemoryReport, Program


def fit(
    program: str,
    limit: str | None,
    recompute: str | None,
    profile_dir: Path | None,
    json: Path | None,
    stages: int | None = None,
    profile: Path | None = None,
) -> bool:
    """Predict the memory of a program that a Python function makes, and print the verdict.

    Returns:
        Whether it fits.

    Raises:
        OptionsError: The flags do not go together, or not with what the function makes.
    """
    import psutil

    from torchkiln.runtime import Program

    if profile is not None and stages is None:
        raise OptionsError("--profile tells where to cut a program; add --stages N")
    if profile_dir is not None and stages is not None:
        raise OptionsError("--profile_dir describes a program without stages; leave out --stages")
    limit_bytes = parse_size(limit) if limit is not None else available_bytes()
    base_bytes = psutil.Process().memory_info().rss
    made, args, kwargs = _make(program)
    given = {"--recompute": recompute, "--profile_dir": profile_dir, "--stages": stages}
    flag = next((name for name, value in given.items() if value is not None), None)
    if flag is not None and not isinstance(made, Program):
        raise OptionsError(
            f"{flag} needs a torchkiln Program, {program} made a {type(made).__name__}; "
            "set the option where the program is made"
        )
    if recompute is not None:
        chosen = "auto" if recompute == "auto" else recompute.split(",")
        made = Program(
            made.module,
            made.options.replace(recompute=chosen),
            made.optimizer,
            training=made.training,
        )
    say("Planning memory, which takes some seconds to a minute")
    # A limit counts Python and its libraries; what is available does not: they run already.
    left_bytes = max(limit_bytes - base_bytes, 0) if limit is not None else limit_bytes
    if stages is not None:
        is_per_process = limit is not None
        plan = made.plan_stages(
            stages,
            args,
            kwargs,
            measured=None if profile is None else _module_times(profile),
            limit_bytes=left_bytes if is_per_process else None,
        )
        lines = program_lines(plan)
        fits = print_stage_plan(plan, left_bytes, is_per_process=is_per_process, lines=lines)
        _write_figures(stages_to_plain(plan, left_bytes, fits), json)
        return fits
    if profile_dir is None:
        report = made.memory_report(*args, **kwargs)
    else:
        report = _write_plan(made, args, kwargs, left_bytes, profile_dir)
    fits = print_memory_report(report, left_bytes)
    _write_figures(to_plain(report, left_bytes), json)
    return fits


def _module_times(profile: Path) -> dict[str, float]:
    from torchkiln.profiling.graph._module_times import module_times

    return module_times(profile)


def _write_figures(figures: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        write_atomic(path, json_module.dumps(figures, indent=2) + "\n")
        say(f"wrote {path}")


def _write_plan(
    program: Program,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    limit_bytes: int,
    profile_dir: Path,
) -> MemoryReport:
    """Write the report of a program that did not run, and return its memory."""
    from torchkiln.profiling.graph._profile import facts_of, folder_name, make_profile
    from torchkiln.profiling.views._write import PAGE_NAME, write_report

    view = program.view(*args, **kwargs)
    folder = profile_dir / folder_name(program)
    profile = make_profile(facts_of(program), view, [], None, limit_bytes=limit_bytes)
    write_report(profile, folder)
    say(f"wrote {folder / PAGE_NAME}")
    return view.memory


def to_plain(report: MemoryReport, limit_bytes: int) -> dict[str, Any]:
    """Return the report as JSON values, sizes in bytes."""
    import dataclasses

    values = dataclasses.asdict(report)
    values["backend"] = report.backend.value
    values["total_bytes"] = report.total_bytes
    values["limit_bytes"] = limit_bytes
    values["fits"] = report.total_bytes <= limit_bytes
    return values


def _make(program: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Call the function that the user named and return the program with its example."""
    place, _, name = program.rpartition(":")
    if not place or not name:
        raise OptionsError(
            f"{program!r} names no function; write file.py:function or package.module:function"
        )
    function = getattr(_load(place), name, None)
    if not callable(function):
        raise OptionsError(f"there is no function {name!r} in {place}")
    made = function()
    if not (isinstance(made, tuple) and len(made) == 2 and hasattr(made[0], "memory_report")):
        raise OptionsError(
            f"{program} must return (program, example): what training_model or inference_model "
            f"made, and the arguments of one call; it returned {type(made).__name__}"
        )
    example = made[1]
    if isinstance(example, dict):
        return made[0], (), example
    return made[0], tuple(example) if isinstance(example, list | tuple) else (example,), {}


def _load(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise OptionsError(
                f"cannot import {place} ({error}); start where it can be imported, or name the file"
            ) from error
    path = Path(place).resolve()
    if not path.is_file():
        raise OptionsError(f"there is no file {place}")
    sys.path.insert(0, str(path.parent))  # as `python file.py` does
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
