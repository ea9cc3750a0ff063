"""Lightning today: a LightningModule trains through `TorchkilnStrategy`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "_shared"))
from client_report import ClientReport

with ClientReport("lightning") as report:
    import lightning.pytorch as pl
    from small_lightning import try_lightning

    from torchkiln import Options
    from torchkiln.lightning import TorchkilnStrategy

    report.imports = True
    report.detail = f"Lightning {pl.__version__}, `Trainer(strategy=TorchkilnStrategy())`."
    options = Options(cache_dir="cache", show_progress=False)

    def settings() -> dict:
        return {"accelerator": "cpu", "strategy": TorchkilnStrategy(options)}

    # Files of our own: since torch 2.6 objects in checkpoints must be allowed.
    try_lightning(report, pl, settings, load={"weights_only": False})
