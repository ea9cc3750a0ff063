"""`Options`: everything that shapes a program besides the module and the optimiser."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from torchkiln.core._choices import shown, to_choice
from torchkiln.core._errors import OptionsError
from torchkiln.core._near_miss import near_misses
from torchkiln.core._pipeline_options import (
    Pipeline,
    PipelineSchedule,
    check_processes,
    to_pipeline,
)
from torchkiln.core._text_formats import parse_json, parse_yaml


class OutputMode(enum.Enum):
    """Which micro-batches' outputs a call returns."""

    DEFAULT = "default"  # ALL for inference, FINAL for training
    ALL = "all"
    SUM = "sum"
    FINAL = "final"
    EVERY_N = "every_n"


class Reduction(enum.Enum):
    """How gradients of accumulated micro-batches and replicas are combined."""

    MEAN = "mean"
    SUM = "sum"


class ReductionOrder(enum.Enum):
    """In which order gradients of several processes are added."""

    FOLDED = "folded"  # that of ranks: the bits of as many replicas in one process
    FASTEST = "fastest"  # whatever the communication library does


class Backend(enum.Enum):
    """How a captured step is run."""

    INDUCTOR = "inductor"  # native code, one executable file
    CAPTURE = "capture"  # the static graph, operator by operator, nothing generated
    EAGER = "eager"  # plain PyTorch with the same semantics, for debugging


class Precision(enum.Enum):
    """Arithmetic of matrix products and convolutions; parameters keep their own dtype."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class InputGrouping(enum.Enum):
    """Which replicas share an input when `input_group_size` is larger than one."""

    CONSECUTIVE = "consecutive"
    ORTHOGONAL = "orthogonal"


@dataclasses.dataclass(frozen=True, slots=True)
class Anchor:
    """An internal tensor to keep after each call, under a name of the user's choice.

    `tensor` is `Gradient___<parameter>` of each micro-batch, `UpdatedVar___<parameter>` after each
    update, `loss`, `input/<argument>` of each micro-batch, or the name of a parameter, buffer or
    plain tensor of the module, as it is before each update or batch.
    """

    tensor: str
    output_mode: OutputMode | None = None
    output_period: int = 1


def _default_backend() -> Backend:
    return to_choice(Backend, os.environ.get("TORCHKILN_BACKEND", "inductor"), "TORCHKILN_BACKEND")


def _default_cache_dir() -> Path | None:
    path = os.environ.get("POPTORCH_CACHE_DIR", "")
    return Path(path) if path else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a program consumes and returns per call, and how it is built.

    A value: validated on construction, read-only, equal by content. Use `replace` to derive
    another one, `to_dict`/`from_dict` (plain JSON/YAML types) to store it.

    Args:
        device_iterations: Weight updates (training) or batches (inference) per call.
        gradient_accumulation: Micro-batches accumulated into one weight update.
        replication_factor: Data-parallel copies; without a process group they are folded into
            the accumulation loop with the same numerics.
        input_group_size: Replicas that receive the same input.
        input_grouping: Which replicas form such a group.
        output_mode: Which micro-batches' outputs are returned.
        output_period: Every how many iterations, for `OutputMode.EVERY_N`.
        reduction: Mean or sum of the gradients over accumulation and replicas.
        backend: `inductor`, `capture` or `eager`; the default is read from `TORCHKILN_BACKEND`.
        precision: Autocast precision of the step; None computes in the parameters' own dtype.
        recompute: Which modules compute their intermediates again in backward, to save memory at
            the price of time: their names, "auto" to choose, or None. The result is the same.
        device: Where the program runs; None takes the module's own device.
        cache_dir: Directory of the executable cache; the default is read from
            `POPTORCH_CACHE_DIR`, None disables it.
        cache_limit_bytes: Oldest executables are dropped above this size.
        trusted_dirs: Folders of others whose executables may be run, such as a cache that a team
            shares; `TORCHKILN_TRUSTED_DIRS` names more. Everything else must be the user's own.
        random_seed: Seeds torch's generator when a program is built.
        synthetic_data: Run on generated values instead of the user's arguments and weights, to
            measure a program without its data. The user's module and optimiser stay as they are.
        check_finite: Raise `NonFiniteError` when a loss or output is NaN or infinite.
        show_progress: Draw the "Graph compilation" progress bar.
        profile_dir: Write a report of where time and memory go, made from some of the first calls,
            into a folder of the program's name in this one; None: no report.
        num_processes: Processes that train one model together, each on its share of the data.
        process_id: This process' rank among them.
        sync_gradients: Whether these processes add up their gradients, so that all have the same
            weights. None: yes, if there are several. False: each one trains a model of its own.
        reduction_order: "folded" adds gradients in the order of ranks, which gives the bits of as
            many replicas in one process; "fastest" leaves the order to the communication library.
        shard_optimizer: Whether each of several processes keeps a part of the optimiser's state and
            updates that part of the parameters, instead of all of them. One process has it all.
        collective_timeout_s: Seconds that a process waits for the others before it gives up.
        pipeline: Divides the model into stages, one process each: the names of the blocks of each
            stage, in order. A block begins where a module of that name is called, or at
            `torchkiln.begin_block(name)`. None, or a single process: the model is not divided.
        pipeline_schedule: "pipelined" lets all stages work at the same time, on different
            micro-batches; "sequential" runs one micro-batch at a time.
        anchors: Internal tensors to keep after each call, by name.
        recorded: Settings that were accepted but have no meaning on this device.
    """

    device_iterations: int = 1
    gradient_accumulation: int = 1
    replication_factor: int = 1
    input_group_size: int = 1
    input_grouping: InputGrouping = InputGrouping.CONSECUTIVE
    output_mode: OutputMode = OutputMode.DEFAULT
    output_period: int = 1
    reduction: Reduction = Reduction.MEAN
    backend: Backend = dataclasses.field(default_factory=_default_backend)
    precision: Precision | None = None
    recompute: str | tuple[str, ...] | None = None
    device: str | None = None
    cache_dir: Path | None = dataclasses.field(default_factory=_default_cache_dir)
    cache_limit_bytes: int = 4 * 2**30
    trusted_dirs: tuple[Path, ...] = ()
    random_seed: int | None = None
    synthetic_data: bool = False
    check_finite: bool = False
    show_progress: bool = True
    profile_dir: Path | None = None
    num_processes: int = 1
    process_id: int = 0
    sync_gradients: bool | None = None
    reduction_order: ReductionOrder = ReductionOrder.FOLDED
    shard_optimizer: bool = False
    collective_timeout_s: float = 120.0
    pipeline: Pipeline | None = None
    pipeline_schedule: PipelineSchedule = PipelineSchedule.PIPELINED
    anchors: Mapping[str, Anchor] = dataclasses.field(default_factory=dict)
    recorded: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in _ENUMS.items():
            value = getattr(self, name)
            if value is not None or name != "precision":
                object.__setattr__(self, name, to_choice(kind, value, name))
        object.__setattr__(self, "recompute", _to_recompute(self.recompute))
        object.__setattr__(self, "pipeline", to_pipeline(self.pipeline))
        for name in ("cache_dir", "profile_dir"):
            path = getattr(self, name)
            if path is not None:
                if not isinstance(path, str | os.PathLike):
                    raise OptionsError(f"{name} must be a path or None, got {shown(path)}")
                object.__setattr__(self, name, Path(path).expanduser())
        object.__setattr__(self, "trusted_dirs", _to_folders(self.trusted_dirs))
        if self.device is not None and not isinstance(self.device, str):
            raise OptionsError(
                f'device must be None or a name such as "cpu", got {shown(self.device)}'
            )
        for name in ("anchors", "recorded"):
            if not isinstance(getattr(self, name), Mapping):
                raise OptionsError(f"{name} must be a mapping, got {shown(getattr(self, name))}")
        for name in _COUNTS:
            _require_count(name, getattr(self, name))
        for name in ("synthetic_data", "check_finite", "show_progress", "shard_optimizer"):
            if not isinstance(getattr(self, name), bool):
                raise OptionsError(f"{name} must be True or False, got {getattr(self, name)!r}")
        # Not `in`: 0 and 1 are equal to False and True, but are neither.
        if not (self.sync_gradients is None or isinstance(self.sync_gradients, bool)):
            raise OptionsError(
                f"sync_gradients must be True, False or None, got {shown(self.sync_gradients)}"
            )
        limit = self.collective_timeout_s
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < 1e9:
            raise OptionsError(
                f"collective_timeout_s must be a positive number of seconds, got {shown(limit)}"
            )
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.shard_optimizer and self.num_stages > 1 and self.synchronizes:
            raise OptionsError(
                "shard_optimizer and pipeline do not work together yet: a stage has the "
                "optimiser's state of its own layers alone, all of it; leave one of the two out"
            )
        if self.replication_factor % self.input_group_size:
            raise OptionsError(
                f"replication_factor {self.replication_factor} is not a multiple of "
                f"input_group_size {self.input_group_size}; every group needs the same number of "
                "replicas"
            )
        every_n = self.output_mode is OutputMode.EVERY_N
        if every_n and self.device_iterations % self.output_period:
            raise OptionsError(
                f"output_period {self.output_period} does not divide device_iterations "
                f"{self.device_iterations}; choose a period that does"
            )
        seed = self.random_seed
        if seed is not None and not (_is_whole(seed) and -(2**63) <= seed < 2**64):
            raise OptionsError(
                f"random_seed must be an int or None, of at most 64 bits, got {shown(seed)}"
            )
        if not (_is_whole(self.process_id) and 0 <= self.process_id < self.num_processes):
            raise OptionsError(
                f"process_id {self.process_id!r} is outside 0..{self.num_processes - 1}; "
                "set num_processes to the number of processes"
            )
        if self.is_divided:
            check_processes(self.num_stages, self.num_processes)

    @property
    def num_stages(self) -> int:
        """Stages that the model is divided into if there are several processes."""
        return len(self.pipeline) if self.pipeline else 1

    @property
    def is_divided(self) -> bool:
        """Whether each process runs a stage of the model only."""
        return self.num_stages > 1 and self.synchronizes

    @property
    def num_pipelines(self) -> int:
        """Copies of the model in all processes, each of which gets a share of the data.

        Without stages every process has one.
        """
        return self.num_processes // self.num_stages if self.is_divided else self.num_processes

    @property
    def pipeline_id(self) -> int:
        """Which of these copies this process belongs to."""
        return self.process_id // self.num_stages if self.is_divided else self.process_id

    @property
    def stage(self) -> int:
        """The stage that this process runs."""
        return self.process_id % self.num_stages if self.is_divided else 0

    @property
    def micro_batches_per_update(self) -> int:
        """Forward and backward passes of this process that share one weight update."""
        return self.gradient_accumulation * self.replication_factor

    @property
    def synchronizes(self) -> bool:
        """Whether gradients are added up over several processes."""
        return self.num_processes > 1 and self.sync_gradients is not False

    @property
    def total_micro_batches_per_update(self) -> int:
        """Forward and backward passes of all processes that share one weight update."""
        copies = self.num_pipelines if self.synchronizes else 1
        return self.micro_batches_per_update * copies

    @property
    def num_state_parts(self) -> int:
        """Parts that the optimiser's state is divided into, one for each process."""
        return self.num_processes if self.shard_optimizer and self.synchronizes else 1

    @property
    def combined_factor(self) -> int:
        """Micro-batches that dim 0 of every input of a call holds."""
        groups = self.replication_factor // self.input_group_size
        return self.device_iterations * self.gradient_accumulation * groups

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes` applied and validated."""
        _require_known(changes)
        return dataclasses.replace(self, **changes)

    def enable_executable_caching(self, path: str | os.PathLike[str] | None) -> Self:
        """Return a copy that keeps executables in `path`; None switches the cache off."""
        return self.replace(cache_dir=None if path is None else Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain JSON/YAML types; `from_dict` takes them back."""
        return {
            field.name: _to_plain(getattr(self, field.name)) for field in dataclasses.fields(self)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build options from `to_dict`'s result or from a hand-written mapping."""
        _require_known(values)
        values = dict(values)
        anchors = values.get("anchors") or {}
        if not isinstance(anchors, Mapping):
            raise OptionsError(
                f"anchors must be a mapping of names to anchors, got {shown(anchors)}"
            )
        values["anchors"] = {
            name: anchor if isinstance(anchor, Anchor) else _anchor_from_dict(name, anchor)
            for name, anchor in anchors.items()
        }
        return cls(**values)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build options from `to_json`'s result.

        Raises:
            OptionsError: if it is no JSON object, or an option does not exist or has a wrong value.
        """
        return cls._from_parsed(parse_json(text, "options", error=OptionsError))

    def to_yaml(self) -> str:
        import yaml

        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Build options from `to_yaml`'s result, or from a text of the same form.

        Raises:
            OptionsError: if it is no mapping, or an option does not exist or has a wrong value.
        """
        return cls._from_parsed(parse_yaml(text, "options", error=OptionsError))

    @classmethod
    def _from_parsed(cls, values: Any) -> Self:
        if not isinstance(values, Mapping):
            raise OptionsError(f"expected a mapping of option names to values, got {shown(values)}")
        return cls.from_dict(values)

    def __str__(self) -> str:
        """One line an option that differs from its default."""
        default = Options()
        changed = [
            f"  {field.name}: {_to_plain(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        ]
        return "Options\n" + "\n".join(changed) if changed else "Options (all defaults)"


_ENUMS: dict[str, type[enum.Enum]] = {
    "output_mode": OutputMode,
    "reduction": Reduction,
    "reduction_order": ReductionOrder,
    "pipeline_schedule": PipelineSchedule,
    "backend": Backend,
    "precision": Precision,
    "input_grouping": InputGrouping,
}
_COUNTS = (
    "device_iterations",
    "gradient_accumulation",
    "replication_factor",
    "input_group_size",
    "output_period",
    "num_processes",
    "cache_limit_bytes",
)


def _require_count(name: str, value: Any) -> None:
    if not _is_whole(value) or value < 1:
        raise OptionsError(f"{name} must be a whole number of at least 1, got {shown(value)}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_known(values: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(Options)]
    for name in values:
        if name not in known:
            close = near_misses(str(name), known)
            hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
            raise OptionsError(f"unknown option {shown(name)}; {hint}")


def _to_recompute(value: Any) -> str | tuple[str, ...] | None:
    if value is None or value == "auto":
        return value  # type: ignore[no-any-return]
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(value) or None
    raise OptionsError(
        f'recompute must be None, "auto" or a list of module names, got {shown(value)}; '
        "module.named_modules() lists the names"
    )


def _to_folders(value: Any) -> tuple[Path, ...]:
    if isinstance(value, list | tuple) and all(isinstance(entry, str | Path) for entry in value):
        return tuple(Path(entry).expanduser() for entry in value)
    raise OptionsError(f"trusted_dirs must be a list of folders, got {value!r}")


def _to_plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Anchor):
        return {
            "tensor": value.tensor,
            "output_mode": _to_plain(value.output_mode),
            "output_period": value.output_period,
        }
    if isinstance(value, Mapping):
        return {str(key): _to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)


def _anchor_from_dict(name: str, values: Any) -> Anchor:
    where = f"anchors[{name!r}]"
    known = {field.name for field in dataclasses.fields(Anchor)}
    if not isinstance(values, Mapping) or not isinstance(values.get("tensor"), str):
        raise OptionsError(
            f"{where} must say the name of a tensor, as in {{'tensor': 'loss'}}, got "
            f"{shown(values)}"
        )
    if unknown := [key for key in values if key not in known]:
        raise OptionsError(f"{where} has no {shown(unknown[0])}; known are {', '.join(known)}")
    _require_count(f"{where}.output_period", values.get("output_period", 1))
    mode = values.get("output_mode")
    return Anchor(
        tensor=values["tensor"],
        output_mode=None if mode is None else to_choice(OutputMode, mode, where),
        output_period=values.get("output_period", 1),
    )
