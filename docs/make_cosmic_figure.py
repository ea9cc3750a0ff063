"""Draws docs/images/cosmic_events.png: a real event beside generated ones.

    python docs/make_cosmic_figure.py FOLDER

FOLDER is a folder with CosmicTagger's cosmic_tagging_light.h5.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

from torchkiln.datasets.cosmic import CosmicEvent, Larcv3Events, generate_event

PICTURE = Path(__file__).parent / "images" / "cosmic_events.png"
# Empty, background, cosmic, neutrino.
COLOURS = ("white", "#c9c9c9", "#2a6fb5", "#d1342f")
_SQUARE = 4


def plane_image(event: CosmicEvent, plane: int) -> np.ndarray:
    """Labels of one plane plus 1, so that 0 is empty; squares show their rarest label."""
    image = np.zeros((event.height // _SQUARE, event.width // _SQUARE), np.uint8)
    chosen = event.planes == plane
    places = (event.ticks[chosen] // _SQUARE, event.wires[chosen] // _SQUARE)
    np.maximum.at(image, places, event.labels[chosen] + 1)
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with cosmic_tagging_light.h5")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where to draw it")
    arguments = parser.parse_args()
    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    columns = {
        "real": Larcv3Events(arguments.folder)[1],
        "generated (seed 0, event 3)": generate_event(0, 3),
        "generated (seed 0, event 4)": generate_event(0, 4),
    }
    figure, axes = plt.subplots(3, 3, figsize=(12, 8), layout="constrained")
    for column, (title, event) in enumerate(columns.items()):
        axes[0, column].set_title(title)
        for plane in range(3):
            axis = axes[plane, column]
            axis.imshow(
                plane_image(event, plane),
                cmap=ListedColormap(COLOURS),
                vmin=0,
                vmax=3,
                origin="lower",
                aspect="auto",
                interpolation="none",
                extent=(0, event.width, 0, event.height),
            )
            if column == 0:
                axis.set_ylabel(f"plane {plane}\ntick")
            if plane == 2:
                axis.set_xlabel("wire")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS[1:]]
    figure.legend(
        handles, ["background", "cosmic", "neutrino"], loc="outside lower center", ncols=3
    )
    figure.savefig(arguments.picture, dpi=110)


if __name__ == "__main__":
    main()
