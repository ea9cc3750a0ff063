"""SchNetPack's side of `schnet.py`: reads seconds from stdin, works so long, writes what it did.

Run by the interpreter of an environment that has SchNetPack; imports nothing of Torchkiln.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import schnetpack.properties as keys
import torch
from schnetpack.atomistic import Atomwise, PairwiseDistances
from schnetpack.data import AtomsLoader
from schnetpack.model import NeuralNetworkPotential
from schnetpack.nn import CosineCutoff, GaussianRBF, shifted_softplus
from schnetpack.representation import SchNet


def make_model(sizes, weights):
    """Return SchNetPack's SchNet with the weights of PyG's."""
    width = sizes["hidden_channels"]
    representation = SchNet(
        n_atom_basis=width,
        n_interactions=sizes["num_interactions"],
        radial_basis=GaussianRBF(n_rbf=sizes["num_gaussians"], cutoff=sizes["cutoff"]),
        cutoff_fn=CosineCutoff(sizes["cutoff"]),
        n_filters=sizes["num_filters"],
    )
    model = NeuralNetworkPotential(
        representation,
        input_modules=[PairwiseDistances()],
        output_modules=[Atomwise(n_in=width, activation=shifted_softplus, output_key="energy")],
    )
    names = {"embedding.weight": "representation.embedding.weight"}
    parts = {
        "conv.lin1": "in2f",
        "conv.lin2": "f2out.0",
        "lin": "f2out.1",
        "mlp.0": "filter_network.0",
        "mlp.2": "filter_network.1",
    }
    for number in range(sizes["num_interactions"]):
        for theirs, own in parts.items():
            for kind in ("weight", "bias"):
                key = f"interactions.{number}.{theirs}.{kind}"
                if key in weights:
                    names[key] = f"representation.interactions.{number}.{own}.{kind}"
    for number, theirs in enumerate(("lin1", "lin2")):
        for kind in ("weight", "bias"):
            names[f"{theirs}.{kind}"] = f"output_modules.0.outnet.{number}.{kind}"
    state = model.state_dict()
    trained = {name for name, _ in model.named_parameters()}
    if trained != set(names.values()):
        raise SystemExit(f"weights without a partner: {sorted(trained ^ set(names.values()))}")
    for theirs, own in names.items():
        state[own] = torch.from_numpy(weights[theirs])
    model.load_state_dict(state)
    return model


def make_molecules(arrays):
    atoms, edges = arrays["offsets"], arrays["edge_offsets"]
    molecules = []
    for number in range(len(atoms) - 1):
        here = slice(atoms[number], atoms[number + 1])
        sources, targets = arrays["edge_index"][:, edges[number] : edges[number + 1]]
        molecules.append(
            {
                keys.Z: torch.from_numpy(arrays["z"][here]),
                keys.R: torch.from_numpy(arrays["pos"][here]),
                keys.n_atoms: torch.tensor([here.stop - here.start]),
                keys.idx_i: torch.from_numpy(targets.copy()),
                keys.idx_j: torch.from_numpy(sources.copy()),
                keys.offsets: torch.zeros(len(sources), 3),
                "y": torch.from_numpy(arrays["y"][number : number + 1]),
            }
        )
    return molecules


def endless(loader):
    while True:
        yield from loader


def main():
    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text())
    torch.manual_seed(0)
    model = make_model(settings["model"], dict(np.load(folder / "weights.npz")))
    molecules = make_molecules(dict(np.load(folder / "molecules.npz")))
    batches = endless(AtomsLoader(molecules, batch_size=settings["batch_size"], shuffle=True))
    training = settings["mode"] == "training"
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    torch.set_grad_enabled(training)
    for line in sys.stdin:
        steps, start = [], time.perf_counter()
        while True:
            batch = next(batches)
            target = batch.pop("y")
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch)["energy"], target)
            if training:
                loss.backward()
                optimizer.step()
            steps.append((len(target), loss.item()))
            seconds = time.perf_counter() - start
            if seconds >= float(line):
                break
        print(json.dumps({"steps": steps, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
