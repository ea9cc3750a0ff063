"""From the flags of the benchmark to the options of its compiled programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchkiln.apps.schnet._settings import BenchSettings, Settings
from torchkiln.core import Backend, Options, OptionsError, Precision, default_cache_dir

# Fields of Options that flags of `bench` set, too.
_FLAGS = (
    "device_iterations",
    "gradient_accumulation",
    "replication_factor",
    "backend",
    "collective_timeout_s",
)


def training_options(settings: Settings) -> Options:
    """Return the options of the training program.

    `--dataset_factory.options` is the base. Where a flag of `bench` has its default value, the
    base counts, otherwise the flag does.

    Raises:
        OptionsError: Both were set, to different values.
    """
    bench = settings.bench
    base = settings.dataset_factory.options or Options()
    chosen: dict[str, Any] = {name: _choose(name, bench, base) for name in _FLAGS}
    chosen["device"] = _device(settings.device, base.device)
    if base.cache_dir is None:
        chosen["cache_dir"] = default_cache_dir()
    if bench.half_precision:
        chosen["precision"] = _half_precision(base.replace(device=chosen["device"]))
    return base.replace(**chosen)


def _choose(name: str, bench: BenchSettings, base: Options) -> Any:
    flag, option = getattr(bench, name), getattr(base, name)
    if name == "replication_factor" and bench.is_plain_eager:
        flag = 1
    if isinstance(flag, str):
        flag = Backend(flag)
    if option == getattr(Options(), name):
        return option if flag is None else flag
    is_default = getattr(bench, name) == _default(name)
    if not is_default and flag != option:
        raise OptionsError(
            f"--bench.{name} is {getattr(bench, name)} but dataset_factory.options say "
            f"{getattr(option, 'value', option)}; set it in one place"
        )
    return option


def _device(flag: str | None, option: str | None) -> str | None:
    if flag is not None and option is not None and flag != option:
        raise OptionsError(
            f"--device is {flag} but dataset_factory.options say {option}; set it in one place"
        )
    return option if flag is None else flag


def _default(name: str) -> Any:
    fields = {entry.name: entry.default for entry in dataclasses.fields(BenchSettings)}
    return fields[name]


def _half_precision(base: Options) -> Precision:
    """Return the 16-bit format that the device computes in; the runtime warns if it has none."""
    if base.precision is not None and base.precision is not Precision.FLOAT32:
        return base.precision
    import torch

    if base.device is not None and not base.device.startswith("cpu"):
        return Precision.BFLOAT16 if torch.cuda.is_bf16_supported() else Precision.FLOAT16
    capabilities = torch.cpu.get_capabilities()
    has_bfloat16 = any(capabilities.get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16"))
    return Precision.BFLOAT16 if has_bfloat16 else Precision.FLOAT16
