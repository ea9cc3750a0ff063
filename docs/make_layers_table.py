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

Which layers of PyG {version} a program can hold, and what has to be changed. Every row was run:
the layer inside a program (`capture` backend), on a batch padded with filler that is far from
zero, against eager PyG on the same graphs without filler. Errors are the largest difference of
outputs and of gradients (of the input and of all parameters) relative to the largest value of the
tensor, at least 1; all are below 1e-5, or the row says "no".

PyG 2.6.0 to 2.8.1 are tested: `make pyg-versions` runs the tests of layers and of the façade on
both ends. What another version lacks or calls otherwise is not replaced by a static form; programs
that do not use it are recorded all the same.

| column | meaning |
|---|---|
| as is | works unchanged in every program |
| make_static | works after `make_static(model, spec)`; or as the third column says |
| with a flag | works if built or called with the flag in the third column |
| no | refused with a `DynamicShapeError` that says why, or not exact on padded batches |

## make_static

```python
model = make_static(model, spec)            # or num_graphs=32; prints what it changed
program = training_model(model, options, optimizer)
```

The model is changed in place; parameters, buffers and `state_dict` keys stay. Outside programs it
gives the numbers that it gave. `add_self_loops=True` layers append one loop a node and set
existing loops aside (weight zero, or moved to a node that is cut off again); pooling,
aggregations and norms without a size take the number of graphs of the batch; `BatchNorm1d` takes
its statistics over real rows only, and so do norms that are called without `batch`; `cached=True`
is switched off. Masks are found by name in the arguments of the model's forward: `node_mask`,
`edge_mask`, `graph_mask` (or `nodes_mask`, ...), in dicts, and in PyG's data objects. Where a
model does not get them, set them around the call:

```python
with batch_form(node_mask=batch.node_mask, graph_mask=batch.graph_mask):
    out = self.model(batch.x, batch.edge_index, batch.batch)
```

A `BatchNorm` finds its mask by the number of rows; sizes that leave it ambiguous are an error.
Layers on dense batches need `max_num_nodes=`, the nodes of the largest graph.
`model.static_report` is the printed list as a value.

## Neighbour search

`knn`, `knn_graph`, `radius`, `radius_graph`, `nearest` and `knn_interpolate` fill tables of fixed
width inside programs; what is missing is -1 in both rows. `EdgeConv`, `DynamicEdgeConv`,
`GravNetConv`, `XConv` and SchNet mask such entries. Before other layers send them to filler:
`route_missing(edge_index, num_nodes - 1)`. PyG itself needs pyg-lib for these;
`provide_point_layers()` (called by `import poptorch_geometric`) makes them work without.
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
