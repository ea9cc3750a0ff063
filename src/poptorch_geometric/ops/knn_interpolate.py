"""Features between points, from those of the nearest ones."""

from torchkiln.graphs.layers import knn_interpolate

__all__ = ["knn_interpolate"]
