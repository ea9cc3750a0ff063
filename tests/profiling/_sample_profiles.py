"""Profiles as real programs have them: small, large, never run, too large for the machine."""

from __future__ import annotations

import dataclasses
import random

from torchkiln.profiling.graph._values import (
    Block,
    Call,
    GraphProfile,
    Insight,
    Liveness,
    Peaks,
    Row,
    SourceLine,
    Times,
)

# What a line computes: text, operator, share of work, flops for each byte that is moved.
_BODY = (
    ("x = self.norm(x)", "aten.native_layer_norm", 1.0, 1.2),
    ("q, k, v = self.qkv(x).chunk(3, dim=-1)", "aten.addmm", 6.0, 11.0),
    ("scores = q @ k.transpose(-2, -1) * self.scale", "aten.bmm", 3.0, 8.0),
    ("weights = scores.softmax(dim=-1)", "aten._softmax", 1.5, 0.9),
    ("x = x + self.proj(weights @ v)", "aten.addmm", 4.0, 9.0),
    ("return F.gelu(self.fc1(x)) if a < b and c > d else x", "aten.gelu", 2.0, 2.5),
)
_NAMES = ("norm", "attention.qkv", "attention", "attention", "attention.proj", "mlp.fc1")
_KINDS = {"norm": "LayerNorm", "attention": "Attention"}
_PHASES = ("forward", "backward", "update")


def small_profile(*, training: bool = True, seed: int = 0) -> GraphProfile:
    """A transformer of two blocks; fused kernels serve several lines."""
    return make_profile(num_blocks=2, rows_per_call=2, training=training, seed=seed)


def big_profile() -> GraphProfile:
    """About 3,000 calls and 10,000 rows."""
    return make_profile(num_blocks=215, rows_per_call=5, training=True, seed=1)


def never_run() -> GraphProfile:
    """Liveness and program, no times."""
    return without_times(small_profile())


def too_large() -> GraphProfile:
    """A step that does not fit into memory, with remedies."""
    profile = without_times(small_profile())
    liveness = profile.liveness
    assert liveness is not None
    return dataclasses.replace(
        profile,
        liveness=dataclasses.replace(
            liveness,
            machine_bytes=liveness.total_bytes // 2,
            fits=False,
            advice=(
                "Use batches of 32 instead of 64: about half of the activations.",
                "Options(recompute=True) computes activations again in backward.",
            ),
        ),
    )


def without_times(profile: GraphProfile) -> GraphProfile:
    return dataclasses.replace(
        profile,
        times=None,
        peaks=None,
        calls=tuple(dataclasses.replace(call, us=None) for call in profile.calls),
        rows=tuple(dataclasses.replace(row, us=None) for row in profile.rows),
        insights=(),
    )


def one_call() -> GraphProfile:
    """The least that there can be: no lines, no parameters, no memory plan, no time at all."""
    call = Call(0, "infer", "aten.relu", "library", "forward", 0.0, 1.0, 0, 0, 0, (), (), ())
    row = Row(0, "forward", "", "ReLU", None, "aten.relu", "", 0.0, 0.0, 0.0, False)
    return dataclasses.replace(
        small_profile(training=False),
        name="tiny",
        num_parameters=0,
        options={},
        inputs=(),
        compile_seconds={},
        times=Times(0.0, 0.0, 0.0, None, None, 1, 1, 0.0),
        peaks=None,
        lines=(),
        calls=(call,),
        rows=(row,),
        liveness=None,
        insights=(),
    )


def hostile() -> GraphProfile:
    """Names that break pages which do not escape them, and very long ones."""
    profile = small_profile()
    nasty = "</script><script>window.broken=1</script><b>&amp;\"'"
    lines = list(profile.lines)
    lines[0] = SourceLine(f"{'deep/' * 40}{nasty}.py", 7, "for<ward>", f"x = y  # {nasty}")
    rows = [
        dataclasses.replace(row, module=f"{'very_long_name.' * 20}{nasty}") if place == 0 else row
        for place, row in enumerate(profile.rows)
    ]
    calls = [dataclasses.replace(profile.calls[0], kernel=nasty), *profile.calls[1:]]
    insight = Insight("data", nasty, nasty, nasty, 1.0, None)
    return dataclasses.replace(
        profile,
        name=nasty,
        model=nasty,
        options={nasty: nasty},
        lines=tuple(lines),
        rows=tuple(rows),
        calls=tuple(calls),
        insights=(insight,),
    )


def make_profile(
    *, num_blocks: int, rows_per_call: int, training: bool, seed: int, slower: float = 1.0
) -> GraphProfile:
    """Return the profile of a transformer; `slower` stretches the first line of each block."""
    rng = random.Random(seed)
    lines = tuple(
        SourceLine("examples/transformer.py", 41 + 3 * place, "forward", text)
        for place, (text, *_) in enumerate(_BODY)
    )
    phases = _PHASES if training else _PHASES[:1]
    calls: list[Call] = []
    rows: list[Row] = []
    for phase in phases:
        blocks = range(num_blocks) if phase != "backward" else reversed(range(num_blocks))
        for block in blocks:
            num_calls = 2 if phase == "update" else len(_BODY)
            for place in range(num_calls):
                call, parts = _make_call(
                    len(calls), phase, block, place, rows_per_call, rng, slower, training
                )
                calls.append(call)
                rows += parts
    executable = sum(call.us or 0.0 for call in calls)
    return GraphProfile(
        name="training" if training else "inference",
        training=training,
        model="Transformer",
        num_parameters=1_579_264 * num_blocks,
        backend="inductor",
        options={"device_iterations": "4", "precision": "bf16"},
        inputs=("tokens: i64[64, 128]", "target: i64[64, 128]"),
        steps_per_call=4,
        micro_batches_per_step=1,
        versions={"torchkiln": "0.9.0", "torch": "2.13.0", "python": "3.11.7"},
        machine={"processor": "AMD EPYC 7B13", "cores": "2", "threads": "2", "memory": "15.6 GB"},
        compile_seconds={"capture": 1.83, "code generation": 4.21, "C++ compiler": 11.4},
        from_cache=False,
        created="2026-11-18T12:30:00+00:00",
        times=Times(
            step_us=executable * 1.06,
            executable_us=executable,
            outside_us=executable * 0.06,
            waiting_us=executable * 0.11,
            other_us=executable * 0.02,
            steps_measured=64,
            steps_used=51,
            slowest_us=executable * 1.9,
        ),
        peaks=Peaks(gflops_per_s=148.0, gbytes_per_s=21.5),
        lines=lines,
        calls=tuple(calls),
        rows=tuple(rows),
        liveness=_liveness(calls, num_blocks, training),
        insights=_insights(executable),
    )


def _make_call(index, phase, block, place, rows_per_call, rng, slower, training):
    _, operator, work, intensity = _BODY[place]
    us = 40.0 * work * rng.uniform(0.8, 1.2) * (slower if place == 0 else 1.0)
    if phase == "update":
        us = 25.0 * rng.uniform(0.8, 1.2)
        operator, intensity = "torchkiln.adamw", 1.1
    bytes_moved = int(us * 12_000 * rng.uniform(0.3, 1.4))
    flops = int(bytes_moved * intensity) if place != 3 else 0
    is_library = operator in ("aten.addmm", "aten.bmm")
    num_rows = 1 if is_library else rows_per_call
    parts, operations = [], []
    for part in range(num_rows):
        at = (place + part) % len(_BODY)
        module = f"blocks.{block}.{_NAMES[at]}"
        line = None if phase == "update" else at
        name = f"{module}.{'weight' if part % 2 == 0 else 'bias'}"
        shown = operator if part == 0 or phase == "update" else _BODY[at][1]
        operations.append(f"{module}: {shown} (transformer.py:{41 + 3 * at})")
        parts.append(
            Row(
                call=index,
                phase=phase,
                module=module,
                module_kind=_KINDS.get(_NAMES[at], "Linear"),
                line=line,
                operator=shown if phase != "backward" else f"{shown}_backward",
                parameter=name if phase == "update" else "",
                us=us / num_rows,
                flops=flops / num_rows,
                bytes_moved=bytes_moved / num_rows,
                is_estimate=num_rows > 1,
            )
        )
    kernel = f"mkl.{operator}" if is_library else f"cpp_fused_{operator.rpartition('.')[2]}_{index}"
    call = Call(
        index=index,
        entry="step" if training else "infer",
        kernel=kernel,
        kind="library" if is_library else "copy" if place == 3 and block == 1 else "generated",
        phase=phase,
        us=us,
        runs=1.0,
        flops=flops,
        bytes_read=bytes_moved * 2 // 3,
        bytes_written=bytes_moved - bytes_moved * 2 // 3,
        inputs=("f32[64, 128, 256]", "f32[256, 768]"),
        outputs=("f32[64, 128, 768]",),
        operations=tuple(operations),
    )
    return call, parts


def _liveness(calls, num_blocks, training):
    num_forward = sum(call.phase == "forward" for call in calls)
    num_backward = sum(call.phase == "backward" for call in calls)
    blocks = []
    for call in calls:
        place = call.index % len(_BODY)
        kind = {"forward": "activation", "backward": "gradient"}.get(call.phase, "temporary")
        size = (8 + 6 * place) * 2**18
        last = call.index + 2
        if kind == "activation" and training and place % 2 == 1:
            last = num_forward + max(num_backward - 1 - call.index, 0)
        elif kind == "activation":
            kind = "temporary"
        elif kind == "gradient" and place == 0:
            last = len(calls) - 1
        if kind == "temporary" and call.phase == "update":
            size = 2**16
        block = min(call.index // len(_BODY), num_blocks - 1)
        module, line = f"blocks.{block}.{_NAMES[place]}", place
        operator = _BODY[place][1]
        last = min(last, len(calls) - 1)
        shape = f"f32[64, 128, {size // (64 * 128 * 4)}]"
        blocks.append(Block(size, call.index, last, kind, module, line, operator, shape, False))
    live = [sum(b.size_bytes for b in blocks if b.born <= i <= b.last) for i in range(len(calls))]
    peak = max(range(len(calls)), key=live.__getitem__)
    blocks = [dataclasses.replace(b, at_peak=b.born <= peak <= b.last) for b in blocks]
    parameters = 4 * 1_579_264 * num_blocks
    always = {"parameters and buffers": parameters, "batch": 2 * 64 * 128 * 8}
    if training:
        always["optimiser state"] = 2 * parameters
    return Liveness(always, tuple(blocks), peak, live[peak], 12 * 2**30, True)


def _insights(executable):
    return (
        Insight(
            "memory-bound",
            "Memory bounds 61 % of the executable",
            "Kernels that only move memory take 61 % of the time inside the executable; the "
            "largest is transformer.py:50.",
            "Options(precision='bf16')",
            gain_us=0.2 * executable,
        ),
        Insight(
            "data",
            "The program waits for data",
            "Between two steps the loop waits 11 % of the time for the next batch.",
            "DataLoader(..., num_workers=2)",
            gain_us=0.11 * executable,
        ),
        Insight(
            "memory",
            "Activations are two thirds of the peak",
            "What forward keeps for backward makes up 66 % of the memory at the peak.",
            "Options(recompute=True)",
            gain_bytes=40 * 2**20,
        ),
    )
