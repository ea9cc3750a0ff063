"""Clock reads in generated code: one behind each call, off until a profile asks for them.

They are in every executable, so a program from the cache can be profiled without compiling it
again. Off, a read is a test of one number; on, it is about 20 nanoseconds. The plan of the calls
(`_plan.py`) lies beside them in the same library.
"""

from __future__ import annotations

from typing import Any

from torchkiln.runtime.compile._plan import read_plan
from torchkiln.runtime.execute._marks import COUNT, PLAN, SWITCH, TIMES
from torchkiln.torch_internals._inductor_plan import call_mark

_HEADER = """
#include <cstdint>
#include <ctime>
extern "C" {{
__attribute__((visibility("default"))) int32_t {switch} = 0;
__attribute__((visibility("default"))) int64_t {times}[{count}] = {{0}};
__attribute__((visibility("default"))) extern const int64_t {counter};
const int64_t {counter} = {count};
__attribute__((visibility("default"))) extern const char {plan}[];
const char {plan}[] = R"torchkiln({text})torchkiln";
}}
static inline void torchkiln_mark(int64_t index) {{
    if (__builtin_expect({switch}, 0)) {{
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        {times}[index] = int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
    }}
}}
"""


def mark_calls(lines: list[Any], digest: str) -> str:
    """Let each mark of a plan read the clock, and return the C++ code that they need.

    Mark 0 is read when the entry begins, mark `n + 1` behind call `n`.

    Args:
        lines: Of Inductor's plan.
        digest: Of the recorded graph whose nodes the plan names by number.
    """
    plan = read_plan(lines, digest)
    kind = call_mark()
    marks = [line for line in lines if isinstance(line, kind)]
    for index, mark in enumerate(marks):
        mark.statement = f"torchkiln_mark({index + 1});"
    lines.insert(0, "torchkiln_mark(0);")
    return _HEADER.format(
        switch=SWITCH,
        times=TIMES,
        counter=COUNT,
        plan=PLAN,
        count=len(marks) + 1,
        text=plan.to_json(),
    )
