"""What is entered around every capture of a program: static forms of PyG, and its own checks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchkiln.graphs.layers._batch_form import find_form
from torchkiln.torch_internals._modules import BatchNormBase


@contextlib.contextmanager
def static_pyg(module: Any) -> Iterator[None]:
    """Make PyG raise where it would compute a size from data, and replace what can be static."""
    from torch_geometric.experimental import experimental_mode

    from torchkiln.graphs.layers._batch_norm import FillerWatch
    from torchkiln.graphs.layers._catalog import substitutes
    from torchkiln.graphs.layers._missing_watch import watching_missing
    from torchkiln.graphs.layers._substitution import Substitute, substituted

    watch = FillerWatch(module)
    watching = Substitute(BatchNormBase, "forward", watch.forward, wraps=True)
    peek = module.register_forward_pre_hook(
        lambda module, args, kwargs: watch.look(find_form(module, args, kwargs)),
        with_kwargs=True,
    )
    try:
        with (
            experimental_mode("disable_dynamic_shapes"),
            substituted((*substitutes(), watching)),
            watching_missing(),
        ):
            yield
    finally:
        peek.remove()
