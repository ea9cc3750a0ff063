"""`poprun`: starts the instances of a distributed program, as Graphcore's command does.

The work is torchrun's, in this process, so that the exit code is that of the instance that failed
first. Each instance is a process group of its own, to which torchrun passes signals on.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

from torchkiln.commands._poprun_flags import (
    HELP,
    VERSION,
    PoprunRequest,
    read_flags,
    to_request,
)
from torchkiln.commands._poprun_layout import IPUS_PER_REPLICA, LOCAL_REPLICAS
from torchkiln.core import OptionsError, __version__
from torchkiln.core._progress import say
from torchkiln.training._exit_codes import ExitCode, run_command

_HELP_TEXT = """\
usage: poprun --num-instances=N --num-replicas=M COMMAND [ARGUMENTS]

Starts a distributed program on this machine, by the name of Graphcore's command. The program runs
in N processes, which are called instances. M is the number of replicas, copies of the model that
share every weight update, in all instances together.

  poprun --num-instances=2 --num-replicas=2 python3 train.py --epochs 3
  poprun --num-instances=2 --num-replicas=8 python3 train.py       # 4 replicas in each instance

In the program, popdist.init() joins the other instances, and popdist.poptorch.Options() are options
with its share of the replicas. The weights are those of one process with replicationFactor(M), up
to rounding.

flags, each before COMMAND, as --flag=VALUE or --flag VALUE:
  --num-instances N           processes (default: 1)
  --num-replicas M            replicas in all, a multiple of N (default: N)
  --ipus-per-replica K        processes of each instance, one for each stage that blocks divide the
                              model into (default: 1)
  --executable-cache-path DIR keep compiled programs there (sets POPTORCH_CACHE_DIR)
  --host NAME[,NAME...]       other machines than this one: tells the torchrun line to run there
  --instances-per-host N      the same, without names
  --help, --version

Flags that belong to Graphcore's machines and to MPI (--vipu-partition, --update-partition,
--mpi-local-args, --numa-aware, ...) are taken and have no effect; a line says so for each.

The instances are started by torchrun, and the line that does it is shown. Use it directly for its
other possibilities, such as --max-restarts: programs with popdist run under torchrun, too.
Ctrl-C and SIGTERM go on to all instances.

exit codes:
  0    every instance ended well
  2    this command line is wrong
  130  Ctrl-C; 143: SIGTERM
  else that of the instance that failed first; 128 + n if signal n ended it
"""


def poprun(args: list[str] | None = None) -> int:
    """Run the command line; errors that name a remedy are printed without a traceback."""
    given = sys.argv[1:] if args is None else args
    return run_command(lambda: _run(given), "poprun", "start fewer instances")


def _run(args: list[str]) -> int:
    flags, command = read_flags(args)
    if HELP in flags or not args:
        (sys.stdout if args else sys.stderr).write(_HELP_TEXT)
        return ExitCode.OK if args else ExitCode.USAGE
    if VERSION in flags:
        sys.stdout.write(f"poprun of torchkiln {__version__}\n")
        return ExitCode.OK
    request = to_request(flags, command)
    runnable = _runnable(request.command)
    for notice in request.notices:
        say(f"poprun: {notice}")
    say(f"poprun: {_described(request)}")
    os.environ.update(request.layout.to_environment())
    if request.executable_cache_path is not None:
        os.environ["POPTORCH_CACHE_DIR"] = str(request.executable_cache_path.absolute())
    # As torchrun does it, but without its warning: instances divide the cores when they join.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return _launch([*_torchrun_flags(request), *runnable])


def _torchrun_flags(request: PoprunRequest) -> list[str]:
    num_processes = request.layout.num_processes
    return ["--standalone", "--nproc-per-node", str(num_processes), "--no-python"]


def _described(request: PoprunRequest) -> str:
    layout = request.layout
    torchrun = shlex.join(["torchrun", *_torchrun_flags(request), *request.command])
    if layout.num_local_replicas > 1:  # one is what popdist takes if nobody says anything
        torchrun = f"{LOCAL_REPLICAS}={layout.num_local_replicas} {torchrun}"
    if layout.num_ipus_per_replica > 1:
        torchrun = f"{IPUS_PER_REPLICA}={layout.num_ipus_per_replica} {torchrun}"
    return (
        f"instances: {layout.num_instances}, replicas in each: {layout.num_local_replicas}, in "
        f"all: {layout.num_total_replicas}; {torchrun}"
    )


def _runnable(command: list[str]) -> list[str]:
    """Return the command with the Python that Torchkiln is installed in, if it asks for Python.

    Raises:
        OptionsError: There is no such program.
    """
    program, *arguments = command
    if program in ("python", "python3"):
        return [sys.executable, *arguments]
    if shutil.which(program) is None:
        hint = ""
        if Path(program).is_file():
            hint = f"; for a Python program: poprun ... python3 {program}"
        raise OptionsError(f"there is no program {program!r} that could be run{hint}")
    return command


def _launch(arguments: list[str]) -> int:
    """Let torchrun start the instances, wait for them, and return the exit code of the run."""
    # Not at the top: torch takes a second to load, and `--help` and errors need none of it.
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(arguments)
    except SignalException as error:
        name = signal.Signals(error.sigval).name
        say(f"poprun: {name} came, and was passed on to all instances")
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        instance, failure = error.get_first_failure()
        if failure.exitcode < 0:
            how = f"was ended by {failure.signal_name()}"
        else:
            how = f"ended with exit code {failure.exitcode}"
        say(f"poprun: instance {instance} (process {failure.pid}) {how}; the others were stopped")
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return ExitCode.OK
