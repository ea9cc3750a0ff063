"""Write docs/layers.md: every layer of PyG in a program on a padded batch, against eager PyG.

Run it from the repository's root: `.venv/bin/python docs/make_layers_table.py` (a few minutes).
The recipes are those of the tests (`tests/graphs/layers/_recipes.py`).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "graphs" / "layers"))

from _layer_parity import Parity, compare  # noqa: E402 - the path comes first
from _layer_samples import MAX_NODES, SLOTS  # noqa: E402
from _recipes import RECIPES, Recipe  # noqa: E402

HEADINGS = {
    "conv": "Convolutions",
    "aggr": "Aggregations",
    "norm": "Normalisation",
    "pool": "Pooling",
    "dense": "Dense layers",
    "unpool": "Unpooling",
    "model": "Models",
    "other": "Others",
}
WORDS = {"as is": "as is", "flag": "with a flag", "make_static": "make_static", "no": "no"}


@dataclass(frozen=True)
class Row:
    """What was found out about one layer."""

    recipe: Recipe
    status: str
    change: str
    parity: Parity | None = None

    def facts(self) -> str:
        """Return the columns that must not change silently (errors differ between machines)."""
        return f"| `{self.recipe.name}` | {WORDS[self.status]} | {self.change} |"

    def line(self) -> str:
        if self.parity is None:
            return f"{self.facts()} | |"
        return f"{self.facts()} {error(self.parity.output)} | {error(self.parity.gradient)} |"


def error(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}"


def measure(names: list[str] | None = None) -> list[Row]:
    """Run all recipes: as they are, with their flag, and after `make_static`."""
    from torchkiln.graphs.layers import provide_point_layers

    provide_point_layers()
    with warnings.catch_warnings():
        # BatchNorm on padded batches warns, which is the point of a row below.
        warnings.simplefilter("ignore")
        return [_measured(recipe) for recipe in RECIPES if names is None or recipe.name in names]


def _measured(recipe: Recipe) -> Row:
    if recipe.missing or recipe.call is None:
        return Row(recipe, "no", recipe.missing)
    as_is = compare(recipe)
    if as_is.exact:
        return Row(recipe, "as is", recipe.note, as_is)
    flagged = compare(recipe, flagged=True) if recipe.flag else None
    rewritten = compare(recipe, prepare=_static)
    flag = f"`{recipe.flag}`" if flagged is not None and flagged.exact else ""
    if rewritten.exact:
        return Row(recipe, "make_static", _joined(flag and f"or {flag}", recipe.note), rewritten)
    if flag:
        return Row(recipe, "flag", _joined(flag, recipe.note), flagged)
    return Row(recipe, "no", recipe.note)


def _joined(*remarks: str) -> str:
    return "; ".join(remark for remark in remarks if remark)


def _static(module: Any) -> Any:
    from torchkiln.graphs.layers import make_static

    return make_static(module, num_graphs=SLOTS["graphs"], max_num_nodes=MAX_NODES, verbose=False)


INTRODUCTION = """# Layers on static shapes

<!-- Written by docs/make_layers_table.py; edit that instead. -->

A compiled program needs *static shapes*: the size of every tensor must be known before it runs.
Some layers of PyG compute sizes from the data, for example the number of graphs from the largest
entry of `batch`. This page lists every layer of PyG {version}, whether it works in a program, and
what has to be changed if it does not work as it is.

Every row was measured. The layer ran inside a program (`capture` backend), on a batch with filler
whose values are far from zero, and was compared with plain PyG on the same graphs without filler.
Errors are the largest difference of outputs, and of gradients of the input and of all parameters,
divided by the largest value of the tensor or by 1, whichever is larger. All errors are below 1e-5;
otherwise the row says "no".

PyG 2.6.0 to 2.8.1 are tested: `make pyg-versions` runs the tests of layers and of the façade on the
oldest and the newest. If another version of PyG lacks a layer or calls it by another name, there is
no static form of it, but programs that do not use it work all the same.

| column | meaning |
|---|---|
| as is | works unchanged in every program |
| make_static | works after `make_static(model, spec)`; or as the third column says |
| with a flag | works if built or called with the flag in the third column |
| no | refused with a `DynamicShapeError` that says why, or not exact on padded batches |

## make_static

`make_static` replaces the layers of a model that need it, and prints what it changed:

```python
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN, global_mean_pool

from torchkiln import Options, training_model
from torchkiln.graphs import FixedSizeLoader, batch_form, make_static, masked_mse_loss


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gnn = GCN(8, 16, num_layers=2, norm="batch_norm")
        self.out = torch.nn.Linear(16, 1)

    def forward(self, x, edge_index, batch, y, node_mask, graph_mask):
        nodes = self.gnn(x, edge_index)
        out = self.out(global_mean_pool(nodes, batch, size=graph_mask.shape[0]))
        return masked_mse_loss(out, y, graph_mask)


graphs = [
    Data(x=torch.rand(n, 8), edge_index=torch.randint(n, (2, 3 * n)), y=torch.rand(1, 1))
    for n in range(3, 43)
]
loader = FixedSizeLoader(graphs, num_nodes=128, shuffle=True)
model = make_static(Model(), loader.spec)  # or num_graphs=32
optimizer = torch.optim.Adam(model.parameters())
program = training_model(model, Options(backend="capture"), optimizer)
for batch in loader:
    loss = program(
        batch.x, batch.edge_index, batch.batch, batch.y, batch.node_mask, batch.graph_mask
    )
```

The model is changed in place. Its parameters, buffers and the keys of its `state_dict` stay, and
outside of programs it gives the same numbers as before. These are the changes:

- Layers with `add_self_loops=True` append one loop for each node. Loops that exist already are set
  aside: they get weight zero, or are moved to an extra node that is removed afterwards.
- Pooling, aggregations and norms that are called without a size take the number of graphs of the
  batch.
- `BatchNorm1d` computes its statistics over real rows only, and so do norms that are called without
  `batch`.
- `cached=True` is switched off.

Masks are found by their names among the arguments of the model's forward: `node_mask`, `edge_mask`,
`graph_mask` (or `nodes_mask`, ...). They are also found in dicts and in PyG's data objects. If your
model does not get them as arguments, set them around the call:

```python
with batch_form(node_mask=batch.node_mask, graph_mask=batch.graph_mask):
    nodes = model.gnn(batch.x, batch.edge_index)
```

A `BatchNorm` finds its mask by the number of rows. If that fits more than one mask, it is an error.
Layers on dense batches need `max_num_nodes=`, the number of nodes of the largest graph.
`model.static_report` is the printed list as a value.

## Neighbour search

Inside programs, `knn`, `knn_graph`, `radius`, `radius_graph`, `nearest` and `knn_interpolate`
return tables of a fixed width. Where a point has fewer neighbours, the entry is -1 in both rows.
`EdgeConv`, `DynamicEdgeConv`, `GravNetConv`, `XConv` and SchNet ignore such entries. For other
layers, let them point to a filler node: `route_missing(edge_index, num_nodes - 1)`. PyG itself
needs the package pyg-lib for these searches; `provide_point_layers()`, which `import
poptorch_geometric` calls, makes them work without it.
"""


def render(rows: list[Row]) -> str:
    import torch_geometric

    parts = [INTRODUCTION.format(version=torch_geometric.__version__)]
    for group, heading in HEADINGS.items():
        own = [row for row in rows if row.recipe.group == group]
        fine = sum(row.status != "no" for row in own)
        parts.append(f"## {heading} ({fine} of {len(own)})\n")
        parts.append("| layer | static | change or remark | output error | gradient error |")
        parts.append("|---|---|---|---|---|")
        parts += [row.line() for row in own]
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    from torchkiln.core import write_atomic

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", help="only these; default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "layers.md")
    arguments = parser.parse_args()
    rows = measure(arguments.layers)
    write_atomic(arguments.output, render(rows).encode())
    refused = [row.recipe.name for row in rows if row.status == "no"]
    sys.stdout.write(f"{len(rows)} layers, {len(rows) - len(refused)} static; not: {refused}\n")


if __name__ == "__main__":
    main()
