"""What can be chosen on the command line, and the images: the same for both programs."""

import argparse
from pathlib import Path

from torchkiln.core import StoreError
from torchkiln.datasets.fashion_mnist import generate_shapes, load_fashion_mnist

# The tutorial's own; the sensible model learns steadily at ten times that.
LEARNING_RATES = {"tutorial": 0.001, "sensible": 0.01}


def parse_arguments(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", choices=LEARNING_RATES, default="tutorial")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument(
        "--test_batch_size", type=int, default=16, help="counts for the tutorial's model: see docs"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and of the images' order")
    parser.add_argument(
        "--root", type=Path, help="folder with the four idx files; default: Debian's package"
    )
    parser.add_argument(
        "--shapes", type=int, metavar="N", help="train on N generated shapes instead, test on N/2"
    )
    parser.add_argument("--pictures", type=Path, default=Path("runs"), help="folder for the PNGs")
    return parser.parse_args()


def load_datasets(args):
    """Return the images to train on and those to test with."""
    if args.shapes:
        return generate_shapes(args.shapes, seed=1), generate_shapes(args.shapes // 2, seed=2)
    try:
        return tuple(load_fashion_mnist(args.root, train=train) for train in (True, False))
    except StoreError as error:
        raise SystemExit(f"{error}; --shapes 8000 tries the program without them") from None
