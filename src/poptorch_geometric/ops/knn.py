"""The nearest neighbours of points."""

from torchkiln.graphs.layers import knn

__all__ = ["knn"]
