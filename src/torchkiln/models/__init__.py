"""Models with static shapes, each the same mathematics as its well-known original."""

from torchkiln.models._baked import BakedSchNet
from torchkiln.models._regression import MoleculeRegression
from torchkiln.models._schnet import SchNet

__all__ = ["BakedSchNet", "MoleculeRegression", "SchNet"]
