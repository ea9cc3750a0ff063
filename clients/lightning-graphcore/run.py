"""lightning-graphcore: the IPU strategy as a package beside Lightning 2.0."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# The package asks for the hardware when it is imported.
os.environ["TORCHKILN_PRETEND_IPU"] = "1"
os.environ["POPTORCH_CACHE_DIR"] = "cache"
sys.path.append(str(Path(__file__).resolve().parents[1] / "_shared"))
from client_report import ClientReport

with ClientReport("lightning-graphcore") as report:
    import lightning.pytorch as pl
    from lightning_graphcore import IPUAccelerator, IPUPrecision, IPUStrategy
    from small_lightning import try_lightning

    report.imports = True
    report.detail = (
        f"lightning-graphcore 0.1.0 beside Lightning {pl.__version__} (it cannot be imported with "
        "2.1 or later), `IPUAccelerator`, `IPUStrategy` and `IPUPrecision` given to the trainer, "
        "with `TORCHKILN_PRETEND_IPU=1`."
    )

    def settings() -> dict:
        return {
            "accelerator": IPUAccelerator(),
            "strategy": IPUStrategy(),
            "plugins": [IPUPrecision(precision="32-true")],
            "devices": 1,
        }

    try_lightning(report, pl, settings)
