"""A trained network taken from its checkpoint, and what it says about molecules."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from torchkiln.checkpoints import CheckpointStore
from torchkiln.core import Backend, CheckpointError, Options, TorchkilnError
from torchkiln.core._progress import progress_bar
from torchkiln.datasets import Molecules, TargetTransform, molecule_store
from torchkiln.datasets.files._elements import symbol_of
from torchkiln.graphs import BatchSpec, FixedSizeLoader, GraphStore
from torchkiln.models import SchNet
from torchkiln.ops._needs import natives_of_module
from torchkiln.runtime import inference_model
from torchkiln.runtime.compile._helpers import prepare_helpers
from torchkiln.training._batches import peek

# Atoms in a batch: enough to keep the kernels busy, and tensors stay in the processor's caches.
_ATOMS_PER_BATCH = 2048
_MOLECULES_WORTH_COMPILING = 250_000


class UnknownElement(TorchkilnError, ValueError):  # noqa: N818 - reads as what it reports
    """A molecule has an element that the training data had not: any prediction would be noise."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel:
    """A network with everything that its numbers mean.

    Attributes:
        model: With the weights that had the smallest validation error; without validation, with
            the averaged or the last ones.
        transform: From what it computes to physical values of the target.
        facts: What the checkpoint says: model, dataset, settings.
    """

    model: SchNet
    transform: TargetTransform
    facts: Mapping[str, Any]

    @property
    def elements(self) -> list[int]:
        """Atomic numbers that occurred in training, in order."""
        return sorted(self.facts["dataset"]["elements"])

    def check_elements(self, molecules: Molecules) -> None:
        """Raise for the first atom of an element that the network has never seen.

        Raises:
            UnknownElement: with the molecule, the element, and those that are known.
        """
        unknown = np.flatnonzero(~np.isin(molecules.z, self.elements))
        if not len(unknown):
            return
        atom = int(unknown[0])
        index = int(np.searchsorted(molecules.offsets, atom, side="right")) - 1
        name = molecules.names[index] if molecules.names else ""
        known = ", ".join(symbol_of(number) for number in self.elements)
        raise UnknownElement(
            f"molecule {index + 1}{f' ({name})' if name else ''} of {molecules.source} contains "
            f"{symbol_of(int(molecules.z[atom]))}; the model was trained on {known} and knows "
            "nothing else: leave such molecules out, or train on data that have them"
        )

    def predict(
        self, molecules: Molecules, *, options: Options | None = None, progress: bool = False
    ) -> NDArray[np.float64]:
        """Return the target of each molecule in physical units, in the order of `molecules`.

        Args:
            molecules: Of elements that the network knows.
            options: How to compute. Default: `choose_options`.
            progress: Whether to show a progress bar.

        Raises:
            UnknownElement: if one has another element.
        """
        self.check_elements(molecules)
        dataset = self.facts["dataset"]
        store = molecule_store(
            molecules, k=dataset["k"], cutoff_angstrom=dataset["cutoff_angstrom"]
        )
        options = options or choose_options(len(molecules))
        # All at the same time, before the network asks for the first of them.
        prepare_helpers(natives_of_module(self.model), show_progress=progress)
        spec = _choose_spec(store)
        loader = FixedSizeLoader(store, spec, options=options, as_tensors=True)
        program = inference_model(_Readout(self._fastest(spec)), options, name="prediction")
        computed = np.empty(len(molecules))
        first, batches = peek(iter(loader))
        program.compile(*_arguments_of(first))  # has a bar of its own
        with progress_bar(
            total=len(molecules), desc="Predicting", unit=" molecules", show=progress
        ) as bar:
            for batch in batches:
                values = program(*_arguments_of(batch))
                index = batch.index.reshape(-1)[batch.graph_mask]
                computed[index.numpy()] = values[batch.graph_mask].cpu().double().numpy()
                bar.update(len(index))
        return self.transform.restore(computed, molecules.z, molecules.offsets)

    def _fastest(self, spec: BatchSpec) -> nn.Module:
        """Return the network, with its filters as finished tables where it uses tables anyway."""
        assert isinstance(spec.num_edges, int)  # one kind of edges
        return self.model.bake() if self.model.uses_table(spec.num_edges) else self.model


def _choose_spec(store: GraphStore) -> BatchSpec:
    """Return sizes that hold every molecule: one batch for a few, batches of a good size for many.

    Chosen from the molecules at hand, whatever they are: one large among many small ones is an
    ordinary file here, and nothing to warn about.
    """
    nodes, pairs = store.sizes["nodes"], store.sizes["edges"]
    num_nodes = max(min(int(nodes.sum()), _ATOMS_PER_BATCH), int(nodes.max()))
    share = num_nodes / int(nodes.sum())
    num_edges = max(math.ceil(share * int(pairs.sum())), int(pairs.max()))
    num_graphs = min(len(store), num_nodes // int(nodes.min()))
    # One of each is filler.
    return BatchSpec(num_nodes + 1, num_edges + 1, num_graphs + 1)


class _Readout(nn.Module):
    """A network in the form of a program: tensors in, one number a graph out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(
        self,
        z: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor,
        edge_ways: Tensor,
        batch: Tensor,
        graph_mask: Tensor,
    ) -> Tensor:
        num_graphs = graph_mask.shape[0]
        values: Tensor = self.model(
            z, edge_index, edge_weight, batch, num_graphs=num_graphs, edge_ways=edge_ways
        )
        return values.reshape(num_graphs)


def _arguments_of(batch: Any) -> tuple[Tensor, ...]:
    """Return the arguments of `_Readout`."""
    return (
        batch.z,
        batch.edge_index,
        batch.edge_weight,
        batch.edge_ways,
        batch.batch,
        batch.graph_mask,
    )


def choose_options(num_molecules: int) -> Options:
    """Return how to compute that many predictions: eagerly, or compiled if there are very many.

    The convolutions are native code either way. Compiling the rest makes a batch 1.7 times as fast
    with tables of filters (1.06 times with exact ones) and takes half a minute, which is what two
    cores need for the first 100,000 molecules. `TORCHKILN_BACKEND` decides if it is set.
    """
    if "TORCHKILN_BACKEND" in os.environ:
        return Options()
    pays_off = num_molecules >= _MOLECULES_WORTH_COMPILING
    return Options(backend=Backend.INDUCTOR if pays_off else Backend.EAGER)


def load_trained(directory: str | os.PathLike[str]) -> TrainedModel:
    """Return the model that a training run saved in `directory`.

    Nothing in a checkpoint is executed.

    Raises:
        CheckpointError: if there is none (those beside it are named), it is damaged, or it is of
            something else.
    """
    path = Path(directory)
    store = CheckpointStore(path)
    if not store.exists():
        names = trained_models(path.parent)
        found = f"there are {', '.join(names)}" if names else "there is none at all"
        raise CheckpointError(
            f"there is no model {path.name!r} in {path.parent}: {found}; train one with "
            f"`torchkiln bench --checkpoint true --model_name {path.name}`, or name another folder "
            "with --checkpoint_dir"
        )
    tensors, facts = store.load()
    parts = (_below(part, tensors) for part in ("best", "average", "model"))
    weights: dict[str, Tensor] = next(filter(None, parts), {})
    try:
        _require_size(facts["model"], weights)
        model = SchNet(**facts["model"])
        model.load_state_dict(weights)
        transform = TargetTransform.from_dict(facts["transform"])
        trained = TrainedModel(model.eval().requires_grad_(False), transform, facts)
        missing = {"k", "cutoff_angstrom", "elements"} - set(facts["dataset"])
    except (
        *(KeyError, TypeError, ValueError, AttributeError),
        *(OverflowError, MemoryError, RuntimeError),
    ) as error:
        raise CheckpointError(
            f"{path} holds no trained SchNet ({type(error).__name__}: {error}); name a model that "
            "`torchkiln bench` trained"
        ) from error
    if missing:
        raise CheckpointError(f"the checkpoint in {path} does not say {', '.join(sorted(missing))}")
    return trained


def _require_size(arguments: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Raise for a model larger than the weights that there are, before memory is made for it."""
    there = sum(tensor.numel() for tensor in weights.values())
    features, filters, gaussians = (
        arguments.get(name) or 1 for name in ("hidden_channels", "num_filters", "num_gaussians")
    )
    largest = max(features * filters, features**2 // 2, gaussians * filters)
    if largest > there or arguments.get("num_interactions", 0) > len(weights):
        raise ValueError(f"its {there:,} weights are too few for the sizes {dict(arguments)}")


def trained_models(root: Path) -> list[str]:
    """Return the names of all checkpoints below `root`."""
    folders = root.iterdir() if root.is_dir() else ()
    return sorted(folder.name for folder in folders if CheckpointStore(folder).exists())


def _below(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{part}/"
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}
