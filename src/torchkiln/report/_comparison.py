"""Several runs side by side: the settings in which they differ, and their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchkiln.report._record import RunResult
from torchkiln.report._results_file import to_plain
from torchkiln.report._rows import summary_groups

# What a run is called and where it is kept: of every run another one, and no reason for any figure.
_BOOKKEEPING = {
    *("run_name", "model_name", "checkpoint", "checkpoint_dir", "checkpoint_epochs", "resume"),
    *("output_dir", "project", "json", "verbose", "bench.use_wandb", "bench.use_tensorboard"),
    *("bench.profile_dir", "run.id", "run.output_dir", "mode.resume", "mode.checkpoint_epochs"),
}
# Too long to stand side by side; the report of each run has them.
_LEFT_OUT = ("", "Source")
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run and what it is called by."""

    name: str
    result: RunResult


@dataclass(frozen=True, slots=True)
class SideRow:
    """One line of a comparison.

    Args:
        name: What is compared.
        texts: Of each run, in order.
    """

    name: str
    texts: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.texts)) > 1


def differing_settings(runs: Sequence[NamedRun]) -> list[SideRow]:
    """Return the settings that are not the same in all runs, named as on the command line."""
    settings = [flat_values(run.result.settings) for run in runs]
    names = dict.fromkeys(name for values in settings for name in values)
    rows = [
        SideRow(name, tuple(values.get(name, _NOTHING) for values in settings)) for name in names
    ]
    return [row for row in rows if row.differs and row.name not in _BOOKKEEPING]


def side_by_side(runs: Sequence[NamedRun]) -> dict[str, list[SideRow]]:
    """Return the figures of the closing tables of all runs, by heading."""
    tables = [
        {title: dict(rows) for title, rows in summary_groups(run.result).items()} for run in runs
    ]
    found: dict[str, list[SideRow]] = {}
    for title in dict.fromkeys(title for table in tables for title in table):
        names = dict.fromkeys(name for table in tables for name in table.get(title, {}))
        found[title] = [
            SideRow(name, tuple(table.get(title, {}).get(name, _NOTHING) for table in tables))
            for name in names
            if name not in _LEFT_OUT
        ]
    return found


def incomparable(runs: Sequence[NamedRun]) -> str:
    """Say why the losses of these runs cannot be compared by their height; "" if they can."""
    reasons = []
    targets = {_target(run.result) for run in runs}
    if len(targets) > 1:
        reasons.append(f"the targets differ ({', '.join(sorted(targets))})")
    kinds = {flat_values(run.result.settings).get("bench.loss", "") for run in runs}
    if len(kinds) > 1:
        reasons.append(f"the kinds of loss differ ({', '.join(sorted(kinds))})")
    if not reasons and _forms_differ(runs):
        reasons.append("the form in which the target is learnt differs")
    return " and ".join(reasons)


# Settings that change what the loss is measured in.
_FORM = ("use_qm9_energy", "use_standardized_energy", "references", "per_atom")


def _forms_differ(runs: Sequence[NamedRun]) -> bool:
    """Tell by what runs say of their form; those of earlier versions only have settings for it."""
    forms = {str(run.result.dataset.get("form", "")) for run in runs}
    if "" not in forms:
        return len(forms) > 1
    return any(row.name.rpartition(".")[2] in _FORM for row in differing_settings(runs))


def _target(result: RunResult) -> str:
    dataset = result.dataset
    return f"{dataset.get('name', '?')} {dataset.get('target', '')}".strip()


def flat_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values as texts by dotted name."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flat_values(value, f"{prefix}{name}."))
        else:
            plain = to_plain(value)
            flat[f"{prefix}{name}"] = _NOTHING if plain is None else str(plain)
    return flat
