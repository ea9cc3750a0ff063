import pytest
import torch

from torchkiln.core import OptionsError
from torchkiln.datasets.fashion_mnist import generate_shapes


def test_images_are_a_function_of_number_and_seed():
    first, again, other = (generate_shapes(30, seed=seed) for seed in (3, 3, 4))
    torch.testing.assert_close(first.images, again.images, rtol=0, atol=0)
    assert not torch.equal(first.images, other.images)


def test_every_shape_comes_once_in_ten_images():
    dataset = generate_shapes(43)
    assert len(dataset) == 43
    for ten in dataset.labels[:40].reshape(4, 10):
        assert ten.sort().values.tolist() == list(range(10))
    assert len(dataset.class_names) == len(set(dataset.class_names)) == 10


def test_images_have_the_form_of_fashion_mnist():
    dataset = generate_shapes(20)
    assert dataset.images.shape == (20, 1, 28, 28)
    assert dataset.images.min() == -1
    assert dataset.images.max() <= 1
    # Every image shows something: bright pixels on a dark ground.
    assert ((dataset.images > -0.3).float().mean(dim=(1, 2, 3)) > 0.1).all()


def test_shapes_tell_their_classes_apart():
    """The mean image of a class is nearest to most images of that class, though they move."""
    train, test = generate_shapes(1000, seed=1), generate_shapes(200, seed=2)
    means = torch.stack([train.images[train.labels == c].mean(dim=0) for c in range(10)])
    distances = torch.cdist(test.images.flatten(1), means.flatten(1))
    right = (distances.argmin(dim=1) == test.labels).float().mean()
    assert 0.4 < right < 0.95  # far above chance, and yet worth learning


def test_no_images_are_refused():
    with pytest.raises(OptionsError, match="num_images must be at least 1, got 0"):
        generate_shapes(0)
