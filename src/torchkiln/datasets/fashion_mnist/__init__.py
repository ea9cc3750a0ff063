"""Fashion-MNIST: 70,000 small pictures of clothing, or generated shapes in their place."""

from torchkiln.datasets.fashion_mnist._images import ImageSet, load_fashion_mnist
from torchkiln.datasets.fashion_mnist._shapes import generate_shapes

__all__ = ["ImageSet", "generate_shapes", "load_fashion_mnist"]
