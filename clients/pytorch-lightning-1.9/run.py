"""pytorch-lightning 1.9, the last with an IPU strategy of its own: `accelerator="ipu"`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Lightning asks for the hardware when it is imported.
os.environ["TORCHKILN_PRETEND_IPU"] = "1"
os.environ["POPTORCH_CACHE_DIR"] = "cache"
sys.path.append(str(Path(__file__).resolve().parents[1] / "_shared"))
from client_report import ClientReport

with ClientReport("pytorch-lightning-1.9") as report:
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import IPUStrategy
    from small_lightning import try_lightning

    report.imports = True
    report.detail = (
        f'pytorch-lightning {pl.__version__}, `Trainer(accelerator="ipu")` with '
        "`TORCHKILN_PRETEND_IPU=1`."
    )

    def settings() -> dict:
        return {"accelerator": "ipu", "devices": 1}

    trainer = pl.Trainer(**settings(), logger=False, enable_checkpointing=False)
    if type(trainer.strategy) is not IPUStrategy:
        raise TypeError(f"the trainer chose {type(trainer.strategy).__name__}")
    try_lightning(report, pl, settings)
