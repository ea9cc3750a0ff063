"""What to try when a run has learnt less than a linear fit on the formulas of the molecules."""

from __future__ import annotations

from torchkiln.apps.schnet._settings import Settings
from torchkiln.datasets import MoleculeSet

_FEW_UPDATES = 2_000
_FEW_MOLECULES = 2_000


def make_advice(
    settings: Settings,
    dataset: MoleculeSet,
    num_updates: int,
    *,
    is_baseline_exact: bool = False,
) -> str:
    """Return a sentence with the flags that most probably help, the likeliest first.

    Args:
        settings: Of the run.
        dataset: What it was trained on.
        num_updates: How many weight updates it made.
        is_baseline_exact: Whether that linear fit makes no error at all.
    """
    if is_baseline_exact:
        return (
            f"Choose another --target: {dataset.target} follows exactly from the number of atoms "
            "of each element, so that nothing is left for a network to learn."
        )
    bench, model = settings.bench, settings.model
    hints = []
    if num_updates < _FEW_UPDATES:
        epochs = 3 * bench.num_epochs
        hints.append(
            f"train longer (--num_epochs {epochs}): it made {num_updates:,} weight updates"
        )
    if len(dataset.splits["train"]) < _FEW_MOLECULES:
        hints.append("give it more molecules to learn from")
    if bench.learning_rate_decay == 1.0:
        hints.append("let the learning rate fall (--learning_rate_decay 0.7)")
    if model.readout == "add" and dataset.transform.per_atom:
        hints.append("let the readout follow the target (--readout auto)")
    if settings.dataset_factory.per_atom is False and dataset.kind == "extensive":
        hints.append("learn the target per atom (--per_atom true)")
    if settings.dataset_factory.references == "none" and dataset.kind == "extensive":
        hints.append("subtract what the elements explain (--references fitted)")
    if not settings.dataset_factory.use_standardized_energy:
        hints.append("scale the target (--use_standardized_energy true)")
    hints.append(f"change the learning rate (--learning_rate {bench.learning_rate / 3:.2g})")
    return f"Try to {'; to '.join(hints[:3])}."
