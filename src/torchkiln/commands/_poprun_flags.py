"""The flags of `poprun`: those that count here, and those of the original's machines."""

from __future__ import annotations

import enum
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from torchkiln.commands._poprun_layout import InstanceLayout
from torchkiln.core import OptionsError
from torchkiln.core._near_miss import did_you_mean

HELP, VERSION = "--help", "--version"
_SHORT = {"-h": HELP, "-u": "--update-partition", "-v": "--verbose", "-vv": "--verbose"}
_NEXT_WORD_IS_ITS_VALUE = ("yes", "no", "true", "false", "on", "off", "1", "0")
_PORT = 29500  # torchrun's own choice


class Takes(enum.Enum):
    """What follows a flag."""

    NOTHING = enum.auto()
    VALUE = enum.auto()
    SWITCH = enum.auto()  # nothing, or a word such as yes


_OWN = {
    HELP: Takes.NOTHING,
    VERSION: Takes.NOTHING,
    "--num-instances": Takes.VALUE,
    "--num-replicas": Takes.VALUE,
    "--ipus-per-replica": Takes.VALUE,
    "--instances-per-host": Takes.VALUE,
    "--host": Takes.VALUE,
    "--executable-cache-path": Takes.VALUE,
}
_NO_PARTITION = "there are no partitions of devices here"
_NO_MPI = "torchrun starts the instances; variables of the environment reach all of them"
# Flags of the original without a counterpart, and why nothing is lost.
_WITHOUT_EFFECT = {
    "--vipu-partition": (Takes.VALUE, _NO_PARTITION),
    "--vipu-cluster": (Takes.VALUE, _NO_PARTITION),
    "--vipu-allocation": (Takes.VALUE, _NO_PARTITION),
    "--vipu-server-host": (Takes.VALUE, _NO_PARTITION),
    "--vipu-server-port": (Takes.VALUE, _NO_PARTITION),
    "--vipu-server-timeout": (Takes.VALUE, _NO_PARTITION),
    "--update-partition": (Takes.SWITCH, _NO_PARTITION),
    "--reset-partition": (Takes.SWITCH, _NO_PARTITION),
    "--remove-partition": (Takes.SWITCH, _NO_PARTITION),
    "--num-ilds": (Takes.VALUE, _NO_PARTITION),
    "--sync-type": (Takes.VALUE, _NO_PARTITION),
    "--mpi-global-args": (Takes.VALUE, _NO_MPI),
    "--mpi-local-args": (Takes.VALUE, _NO_MPI),
    "--host-subnet": (Takes.VALUE, "the network is chosen by the route to MASTER_ADDR"),
    "--numa-aware": (Takes.SWITCH, "the cores of the host are divided among the instances"),
    "--offline-mode": (Takes.SWITCH, "there is no device to attach to"),
    "--print-topology": (Takes.SWITCH, "the line below says all there is to say"),
    "--only-output-from-instance": (Takes.VALUE, "every instance's output is shown"),
    "--only-stdout-from-instance": (Takes.VALUE, "every instance's output is shown"),
    "--only-stderr-from-instance": (Takes.VALUE, "every instance's output is shown"),
    "--verbose": (Takes.SWITCH, "the line below says all there is to say"),
}
_TAKES = _OWN | {name: takes for name, (takes, _) in _WITHOUT_EFFECT.items()}


@final
@dataclass(frozen=True, slots=True)
class PoprunRequest:
    """What a command line of `poprun` asks for.

    Args:
        layout: Instances and replicas.
        command: What each instance runs.
        executable_cache_path: Where compiled programs are kept; None: nothing was said.
        notices: What was given without any effect, one line each.
    """

    layout: InstanceLayout
    command: list[str]
    executable_cache_path: Path | None = None
    notices: list[str] = field(default_factory=list)


def read_flags(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the flags with their values, and the command that follows them.

    Raises:
        OptionsError: A flag does not exist, comes twice, or its value is missing.
    """
    flags: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        spelled, given, value = word.partition("=")
        name = _SHORT.get(spelled, spelled.replace("_", "-"))
        if name not in _TAKES:
            known = [flag.removeprefix("--") for flag in _TAKES]
            hint = did_you_mean(
                name.lstrip("-"),
                known,
                before="--",
                otherwise="poprun does not know it; flags of the program stand behind its name",
            )
            raise OptionsError(f"unknown flag {spelled}; {hint}")
        if name in flags:
            raise OptionsError(f"{name} is given twice; leave one of them out")
        if not given and _takes_next(_TAKES[name], rest):
            value = rest.pop(0)
        if _TAKES[name] is Takes.VALUE and not value:
            raise OptionsError(f"{name} needs a value: {name}=...")
        flags[name] = value
    return flags, rest


def _takes_next(takes: Takes, rest: Sequence[str]) -> bool:
    if takes is Takes.SWITCH:
        return bool(rest) and rest[0].lower() in _NEXT_WORD_IS_ITS_VALUE
    return takes is Takes.VALUE and bool(rest)


def to_request(flags: dict[str, str], command: list[str]) -> PoprunRequest:
    """Check the values of the flags against each other, and return what they ask for.

    Raises:
        OptionsError: A value makes no sense, or the run needs other machines.
    """
    if not command:
        raise OptionsError(
            "there is no program to run; it stands at the end: "
            "poprun --num-instances=2 --num-replicas=4 python3 train.py"
        )
    instances = _count(flags, "--num-instances", 1)
    replicas = _count(flags, "--num-replicas", instances)
    if replicas % instances:
        raise OptionsError(
            f"--num-replicas counts those of all instances, and each has the same number: "
            f"{replicas} is no multiple of --num-instances={instances}; take "
            f"{_multiples(replicas, instances)}"
        )
    layout = InstanceLayout(
        num_instances=instances,
        num_local_replicas=replicas // instances,
        num_ipus_per_replica=_count(flags, "--ipus-per-replica", 1),
    )
    _check_hosts(flags, layout, command)
    cache = flags.get("--executable-cache-path")
    return PoprunRequest(
        layout,
        command,
        executable_cache_path=None if cache is None else Path(cache),
        notices=[
            f"{name} has no effect: {_WITHOUT_EFFECT[name][1]}"
            for name in flags
            if name in _WITHOUT_EFFECT
        ],
    )


def _check_hosts(flags: dict[str, str], layout: InstanceLayout, command: list[str]) -> None:
    """Refuse several machines, and say how to do without `poprun` there."""
    hosts = [name.strip() for name in flags.get("--host", "").split(",") if name.strip()]
    instances = layout.num_instances
    on_each = _count(flags, "--instances-per-host", max(instances // max(len(hosts), 1), 1))
    if all(_is_here(host) for host in hosts) and on_each >= instances:
        return
    num_hosts = max(len(hosts), -(-instances // on_each))
    if num_hosts * on_each != instances:
        raise OptionsError(
            f"{instances} instances on {num_hosts} hosts with {on_each} each do not add up; give "
            "each host the same number"
        )
    first = hosts[0] if hosts else "HOST"
    variables = " ".join(f"{name}={value}" for name, value in layout.to_environment().items())
    where = " and ".join(hosts) if hosts else f"{num_hosts} hosts"
    raise OptionsError(
        f"poprun starts instances on this machine only; for {where}, run this line on each "
        f"({first} is the first of them, by the name or address that the others know):\n"
        f"  {variables} torchrun --nnodes {num_hosts} --nproc-per-node "
        f"{on_each * layout.num_ipus_per_replica} "
        f"--rdzv-backend c10d --rdzv-endpoint {first}:{_PORT} --rdzv-id run1 "
        f"--no-python {shlex.join(command)}"
    )


def _is_here(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn())


def _count(flags: dict[str, str], name: str, default: int) -> int:
    text = flags.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise OptionsError(f"{name} must be a number from 1 on, got {text!r}")
    return int(text)


def _multiples(replicas: int, instances: int) -> str:
    above = -(-replicas // instances) * instances
    return str(above) if above == instances else f"{above - instances} or {above}"
