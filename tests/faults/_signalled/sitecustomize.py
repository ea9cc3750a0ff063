"""Imported at the start of Python if this folder is on PYTHONPATH: a signal comes in a phase.

`FAULT_PHASE` names the phase, `FAULT_SIGNAL` the number of the signal.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time

# The module and the function of it that is the phase.
PLACES = {
    "import": ("torch.nn", ""),
    "settings": ("torchkiln.bench.schnet._arguments", "read_settings"),
    "data preparation": ("torchkiln.bench.schnet._experiment", "load_dataset"),
    "capture": ("torchkiln.runtime._capture", "capture"),
    "step": ("torchkiln.bench.schnet._steps", "ProgramStep.__call__"),
    "save": ("torchkiln.runtime._checkpoint", "CheckpointStore._write"),
    "report": ("torchkiln.bench.report._plots", "pictures_of"),
}


def signal_oneself():
    os.kill(os.getpid(), int(os.environ["FAULT_SIGNAL"]))
    time.sleep(0.01)  # Python acts on it now at the latest


class Hook(importlib.abc.MetaPathFinder):
    """Finds one module, and makes its function send the signal first."""

    def __init__(self, module, function):
        self.module, self.function = module, function

    def find_spec(self, name, path, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        if not self.function:
            signal_oneself()
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            *owners, last = self.function.split(".")
            owner = module
            for part in owners:
                owner = getattr(owner, part)
            original = getattr(owner, last)

            def signalled(*args, **kwargs):
                setattr(owner, last, original)
                signal_oneself()
                return original(*args, **kwargs)

            setattr(owner, last, signalled)

        spec.loader.exec_module = exec_module
        return spec


phase = os.environ.get("FAULT_PHASE")
if phase in PLACES and os.environ.get("FAULT_PROCESS") == "":
    os.environ["FAULT_PROCESS"] = str(os.getpid())  # not in processes that this one starts
    sys.meta_path.insert(0, Hook(*PLACES[phase]))
