"""Models with static shapes, each the same mathematics as its well-known original."""

from torchkiln.models._baked import BakedSchNet
from torchkiln.models._regression import MoleculeRegression
from torchkiln.models._schnet import SchNet
from torchkiln.models._segmentation import Balance, Segmentation, segmentation_loss
from torchkiln.models._segmentation_metrics import SegmentationMetrics, count_pixels
from torchkiln.models._uresnet import UResNet2D
from torchkiln.models._uresnet_settings import UResNetSettings

__all__ = [
    # molecules
    "BakedSchNet",
    "MoleculeRegression",
    "SchNet",
    # pixels
    "Balance",
    "Segmentation",
    "SegmentationMetrics",
    "UResNet2D",
    "UResNetSettings",
    "count_pixels",
    "segmentation_loss",
]
