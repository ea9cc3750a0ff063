import torch
from test_docs_table import TABLES

from poptorch._effects import options_recorded_now, options_without_effect

# They only warn: nothing is kept that could be listed.
WITHOUT_A_VALUE = {"Precision.halfFloatCasting", "Precision.runningStatisticsAlwaysFloat"}
WITHOUT_A_VALUE |= {"Jit.traceModel", "TensorLocations"}


def test_trying_finds_what_the_documentation_says():
    documented = set()
    for heading, names in TABLES.items():
        if heading == "Options" or heading.startswith("Options."):
            group = heading.removeprefix("Options").lstrip(".")
            recorded = {name for name, state in names.items() if state == "recorded"}
            documented |= {f"{group}.{name}" if group else name for name in recorded}
    assert len(documented) > 20
    assert set(options_without_effect()) == documented - WITHOUT_A_VALUE


def test_trying_leaves_no_trace():
    before = torch.get_rng_state()
    options_without_effect()
    assert torch.equal(torch.get_rng_state(), before)
    assert options_recorded_now() == {}
