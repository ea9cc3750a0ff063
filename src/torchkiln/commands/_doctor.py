"""`torchkiln doctor`: what is here, and what would stop a program from being fast."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable

from torchkiln.commands import (
    _doctor_caches,
    _doctor_machine,
    _doctor_pools,
    _doctor_processes,
    _doctor_versions,
)
from torchkiln.commands._findings import Finding
from torchkiln.core import __version__
from torchkiln.core._console import make_console
from torchkiln.core._own_code import OWN_FOLDERS

Probe = Callable[[], Iterable[Finding]]


def print_diagnosis() -> None:
    """Print versions, machine, compiler, caches and options without effect, with remedies.

    Never fails: a probe that does is a finding. Of several processes, rank 0 prints.
    """
    if not _doctor_processes.speaks():
        _answer_first_rank()
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="torchkiln doctor", title_justify="left", show_header=False)
    table.add_column("what", style="bold")
    table.add_column("finding")
    num_remedies = 0
    for title, probe in _probes().items():
        table.add_row(f"[cyan]{title}", "", style="dim")
        for finding in run_probe(title, probe):
            text = escape(finding.text)
            if finding.remedy:
                num_remedies += 1
                text += f"\n[yellow]-> {escape(finding.remedy)}"
            table.add_row(f"  {escape(finding.what)}", text)
        table.add_section()
    console = make_console()
    console.print(table)
    console.print(f"{num_remedies} remedies above, marked ->" if num_remedies else "All is well")


def print_diagnosis_record() -> None:
    """Print the same as one JSON record; the remedy of a finding is empty if nothing is wrong."""
    if not _doctor_processes.speaks():
        _answer_first_rank()
        return
    parts = {
        title: [dataclasses.asdict(finding) for finding in run_probe(title, probe)]
        for title, probe in _probes().items()
    }
    remedies = [entry["remedy"] for part in parts.values() for entry in part if entry["remedy"]]
    record = {"version": __version__, "findings": parts, "remedies": remedies}
    sys.stdout.write(json.dumps(record, indent=2) + "\n")


def _answer_first_rank() -> None:
    """Tell rank 0 where this process computes; what goes wrong is told there."""
    run_probe("Processes", _doctor_processes.processes)


def run_probe(title: str, probe: Probe) -> list[Finding]:
    """Return what a probe finds; if it fails, what it found before, and that."""
    findings: list[Finding] = []
    try:
        for finding in probe():
            findings.append(finding)  # one by one: keeps what came before an error
    except Exception as error:  # whatever is broken here is what the user wants to know
        findings.append(
            Finding(
                "cannot tell more",
                f"{type(error).__name__}: {error}",
                f"this part of the diagnosis ({title}) failed; the message above says why",
            )
        )
    return findings


def _probes() -> dict[str, Probe]:
    return {
        "Versions": _doctor_versions.required_packages,
        "Optional packages": _doctor_versions.optional_packages,
        "Machine": _doctor_machine.machine,
        # Before threads are looked at: processes that know each other divide the cores.
        "Processes": _doctor_processes.processes,
        "Threads": _doctor_machine.threads,
        "Pools of threads": _doctor_pools.thread_pools,
        "Compiler": _doctor_machine.compiler,
        "Caches": _doctor_caches.caches,
        "Options without effect here": options_without_effect,
    }


def options_without_effect() -> Iterable[Finding]:
    """List what PopTorch programs may set and what is only recorded."""
    import importlib
    import importlib.util

    spec = importlib.util.find_spec("poptorch")
    if spec is None:
        return
    if not (spec.origin or "").startswith(OWN_FOLDERS):
        yield Finding("poptorch", f"another one than Torchkiln's is in use: {spec.origin}")
        return
    # By name: the façade imports torchkiln, never the other way round. This only looks at it, as at
    # any other package that may be installed.
    effects = importlib.import_module("poptorch._effects")
    yield Finding(
        "poptorch.Options",
        "checked and recorded, for the original's hardware: "
        + ", ".join(effects.options_without_effect()),
    )
    now = effects.options_recorded_now()
    if now:
        yield Finding(
            "in use",
            ", ".join(f"{name} = {value!r}" for name, value in now.items()),
            "POPTORCH_DEFAULT_OPTIONS sets these; they change nothing here",
        )
