"""A process with the shim that imports everything once, and forks for each request.

Reads lines of JSON (scenario, mode, limit, root, native) and answers each with one. With the
argument "native" it imports torch's compiler, too, which takes longer than most requests.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import torch
from _call_scenarios import SCENARIOS
from _fail_calls import Runner, Scenario
from _harmful_scenarios import HARMFUL
from _native_scenarios import NATIVE_SCENARIOS

ALL = {**SCENARIOS, **NATIVE_SCENARIOS, **{name: kind for name, (kind, _) in HARMFUL.items()}}
_USED_BY_ALL = ("torchkiln.report._write", "torchkiln.report._results_file")
_USED_BY_NATIVE = ("torch._dynamo", "torch.export", "torch._inductor.codecache")
_USED_BY_NATIVE += ("torch._inductor.package", "torch._inductor.compile_fx")


def main() -> None:
    torch.set_num_threads(1)
    for name in (*_USED_BY_ALL, *(_USED_BY_NATIVE if "native" in sys.argv else ())):
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print
    gc.collect()
    gc.freeze()  # collecting after each fault is cheap then
    for line in sys.stdin:
        print(_answer_in_fork(line), file=answers, flush=True)


def _answer_in_fork(line: str) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as file:
            file.write(_answer(**json.loads(line)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    return answer or json.dumps({"harm": [f"the process ended with status {status}"]})


def _answer(scenario: str, mode: str, limit: int, root: str, native: str) -> str:
    try:
        Scenario.native = Path(native)
        report = Runner(ALL[scenario](), mode, Path(root)).run(limit)
        return json.dumps(vars(report))
    except BaseException:
        return json.dumps({"harm": [traceback.format_exc()]})


if __name__ == "__main__":
    main()
