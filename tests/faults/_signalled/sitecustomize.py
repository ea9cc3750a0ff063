"""Imported at the start of Python if this folder is on PYTHONPATH: a signal comes in a phase.

`FAULT_PHASE` names the phase, `FAULT_SIGNAL` the number of the signal, `FAULT_CALL` which call of
the phase's function it is that gets it. Ctrl-C goes to the whole group, as from a terminal.
"""

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time

# The module and the function of it that is the phase.
PLACES = {
    "import": ("torch.nn", ""),
    "settings": ("torchkiln.apps.schnet._arguments", "read_settings"),
    "data preparation": ("torchkiln.apps.schnet._experiment", "load_dataset"),
    "capture": ("torchkiln.runtime.capture._capture", "capture"),
    "step": ("torchkiln.training._steps", "ProgramStep.__call__"),
    "save": ("torchkiln.checkpoints._store", "CheckpointStore._write"),
    # In the middle of phases: between molecules, and between the two files of a checkpoint.
    "a molecule": ("torchkiln.datasets.files._builder", "MoleculeBuilder.add"),
    "header of a checkpoint": ("torchkiln.checkpoints._store", "write_sealed"),
    "report": ("torchkiln.report._plots", "pictures_of"),
}


def signal_oneself():
    number = int(os.environ["FAULT_SIGNAL"])
    if number == signal.SIGINT:
        os.killpg(0, number)
    else:
        os.kill(os.getpid(), number)
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
            calls = iter(range(1, int(os.environ["FAULT_CALL"])))

            def signalled(*args, **kwargs):
                if next(calls, None) is None:
                    setattr(owner, last, original)
                    signal_oneself()
                return original(*args, **kwargs)

            setattr(owner, last, signalled)

        spec.loader.exec_module = exec_module
        return spec


phase = os.environ.get("FAULT_PHASE")
os.environ.setdefault("FAULT_GROUP", str(os.getpgid(0)))  # for compiler.sh
if phase in PLACES and os.environ.get("FAULT_PROCESS") == "":
    os.environ["FAULT_PROCESS"] = str(os.getpid())  # not in processes that this one starts
    sys.meta_path.insert(0, Hook(*PLACES[phase]))
