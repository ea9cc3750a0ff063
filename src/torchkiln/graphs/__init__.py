"""Fixed-size batches of graphs: spec, store, collation, loaders, static layers."""

from torchkiln.graphs._spec import BatchSpec, PadValues

__all__ = ["BatchSpec", "PadValues"]
