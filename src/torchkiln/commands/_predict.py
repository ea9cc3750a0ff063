"""`torchkiln predict`: what a trained model says about the molecules in files."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.apps._device import check_device
from torchkiln.commands._predictions import Predictions
from torchkiln.core import Options, OptionsError
from torchkiln.core._progress import say
from torchkiln.core._room import check_room

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torchkiln.apps.schnet import TrainedModel
    from torchkiln.datasets import Molecules

_OUTPUTS = (".csv", ".extxyz", ".xyz")


def predict_files(
    files: list[str],
    model_name: str,
    *,
    checkpoint_dir: Path,
    output: Path | None,
    rows: int,
    backend: str | None,
    device: str | None = None,
) -> None:
    """Print a table of predictions, and write them to `output` if it is given.

    Raises:
        OptionsError: if there is nothing to read, or the output could not be written.
        WriteError: if its disk became full meanwhile.
        TorchkilnError: whatever is wrong with the model or the files, before anything is computed.
    """
    if not files:
        raise OptionsError("no files to predict; name some: torchkiln predict ... molecules.xyz")
    if rows < 0:
        raise OptionsError(f"rows must be 0 or more, got {rows}")
    check_output(output, files)
    _pin_threads()
    if device is not None:
        check_device(device)
    from torchkiln.apps.schnet import load_trained
    from torchkiln.commands._predict_output import print_table, write_output

    trained = load_trained(checkpoint_dir / model_name)
    start = time.perf_counter()
    predictions = predict(files, trained, backend=backend, device=device)
    print_table(predictions, model_name, rows=rows, seconds=time.perf_counter() - start)
    if output is not None:
        write_output(predictions, output)
        say(f"wrote {output}")


def predict(
    files: list[str],
    trained: TrainedModel,
    *,
    backend: str | None = None,
    device: str | None = None,
) -> Predictions:
    """Read all files and let the model look at their molecules.

    Raises:
        StoreError: if a file cannot be read; nothing is computed then.
        UnknownElement: if the model does not know an element, before anything is computed.
    """
    from torchkiln.datasets import read_molecules
    from torchkiln.datasets.molecules._molecules import join_molecules

    parts = [read_molecules(file, progress=True) for file in files]
    for part in parts:
        trained.check_elements(part)
    molecules = parts[0] if len(parts) == 1 else join_molecules(parts, source=", ".join(files))
    options = _options(len(molecules), backend, device)
    return Predictions(
        molecules=molecules,
        files=[file for file, part in zip(files, parts, strict=True) for _ in range(len(part))],
        frames=[frame for part in parts for frame in range(1, len(part) + 1)],
        values=trained.predict(molecules, options=options, progress=True),
        references=_references(molecules, trained.transform.target),
        target=trained.transform.target,
        unit=trained.transform.unit,
    )


def _options(num_molecules: int, backend: str | None, device: str | None) -> Options:
    """Return how to compute: what was asked for, the rest as suits so many molecules."""
    from torchkiln.apps.schnet._trained import choose_options

    options = choose_options(num_molecules)
    asked = {"backend": backend, "device": device}
    return options.replace(**{name: value for name, value in asked.items() if value is not None})


def _pin_threads() -> None:
    """Pin threads, unless torch runs already or the user has arranged them himself."""
    if "torch" not in sys.modules and not {"OMP_NUM_THREADS", "OMP_PROC_BIND"} & set(os.environ):
        from torchkiln.core._threads import pin_threads

        pin_threads()


def _references(molecules: Molecules, target: str) -> NDArray[np.float64]:
    import numpy as np

    from torchkiln.datasets.molecules._targets import resolve_target

    try:
        return molecules.targets[resolve_target(molecules, target)]
    except OptionsError:  # the files do not say
        return np.full(len(molecules), np.nan)


def check_output(output: Path | None, files: list[str]) -> None:
    """Raise for an output that cannot be written, before anything is computed."""
    if output is None:
        return
    if output.suffix.lower() not in _OUTPUTS:
        raise OptionsError(
            f"cannot tell what to write to {output}; its suffix must be one of "
            f"{', '.join(_OUTPUTS)}"
        )
    if any(output.resolve() == Path(file).resolve() for file in files):
        raise OptionsError(f"{output} is one of the files to read; choose another --output")
    if output.is_dir():
        raise OptionsError(f"{output} is a folder; choose another --output")
    check_room(output.parent, "the predictions", "choose another --output", least_bytes=1)
