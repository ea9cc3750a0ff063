"""The progress of a training, as a bar or as lines in a file, and two pictures at the end."""

import statistics
import sys
import time

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm import tqdm

# Single losses jump too much to be read.
RECENT_STEPS = 100


class EpochBar:
    """Yields the batches of an epoch; a bar in a terminal, and always a line that stays."""

    def __init__(self, epoch, batches, num_images):
        self._name = f"[Epoch {epoch + 1:02d}]"
        self._batches = batches
        self._bar = tqdm(
            total=num_images,
            desc=self._name,
            unit=" images",
            leave=False,
            disable=not sys.stderr.isatty(),
        )
        self.losses = []

    def __iter__(self):
        start, seen = time.perf_counter(), 0
        for data, labels in self._batches:
            yield data, labels
            seen += len(labels)
            self._bar.update(len(labels))
        self._bar.close()
        seconds = time.perf_counter() - start
        print(
            f"{self._name} loss {statistics.fmean(self.losses):.3f}, {len(self.losses):,} steps "
            f"in {seconds:.1f} s ({seen / seconds:,.0f} images/s)",
            flush=True,  # into a file, too, while the program runs
        )

    def show(self, loss):
        """Add the loss of one step, or those of all steps of a call."""
        self.losses += loss.detach().reshape(-1).tolist()
        recent = statistics.fmean(self.losses[-RECENT_STEPS:])
        self._bar.set_postfix_str(f"Loss={recent:.3f}", refresh=False)


class Confusion:
    """How many images of each class were taken for each class."""

    def __init__(self, class_names):
        self.class_names = class_names
        self.counts = np.zeros((len(class_names), len(class_names)), int)

    def add(self, labels, predicted):
        np.add.at(self.counts, (labels.numpy(), predicted.cpu().numpy()), 1)

    @property
    def num_images(self):
        return int(self.counts.sum())

    @property
    def accuracy(self):
        return float(self.counts.trace() / self.counts.sum())


def draw_pictures(args, losses, confusion):
    """Write both pictures to the folder that the arguments name, and say so."""
    args.pictures.mkdir(parents=True, exist_ok=True)
    for name, draw, content in (("loss", draw_loss, losses), ("confusion", draw_table, confusion)):
        figure = Figure(figsize=(7.5, 3.8 if name == "loss" else 6.4), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots(), content, args)
        path = args.pictures / f"fashion_mnist_{args.model}_{name}.png"
        figure.savefig(path, dpi=130)
        print(f"Picture: {path}")


def draw_loss(panel, losses, args):
    positions = np.arange(1, len(losses) + 1) * args.epochs / len(losses)
    panel.plot(positions, losses, color="#0b6e99", alpha=0.25, linewidth=0.6, label="single steps")
    width = max(1, min(len(losses) // 50, 2 * RECENT_STEPS))
    mean = np.convolve(losses, np.ones(width) / width, "valid")
    panel.plot(
        positions[width - 1 :], mean, color="#0b6e99", linewidth=1.8, label=f"mean of {width} steps"
    )
    panel.set(xlabel="epoch", ylabel="loss", xlim=(0, args.epochs), ylim=(0, None))
    panel.set_title(f"Training loss of the {args.model} model", loc="left", fontweight="bold")
    panel.grid(color="#e4e8ee")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)


def draw_table(panel, confusion, args):
    counts, names = confusion.counts, confusion.class_names
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if shares[row, column] > 0.5 else "#1f2733"
            panel.text(
                column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=8.5
            )
    panel.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    panel.set_yticks(range(len(names)), names)
    panel.set(xlabel="predicted", ylabel="true")
    panel.set_title(
        f"{confusion.accuracy:.2%} of {confusion.num_images:,} images right ({args.model} model)",
        loc="left",
        fontweight="bold",
    )
    panel.spines[:].set_visible(False)
