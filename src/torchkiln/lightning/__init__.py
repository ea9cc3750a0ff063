"""Lightning's `Trainer` on compiled programs: `Trainer(strategy=TorchkilnStrategy())`."""

from torchkiln.lightning._strategy import TorchkilnStrategy

__all__ = ["TorchkilnStrategy"]
