"""Whatever is in a file: what is read is a value or an error of ours, soon, in little memory."""

from __future__ import annotations

import pytest
from _amount import WHOLE, amount
from _in_child import harms, ran_out_of_memory
from _mutations import identity
from _readers import READERS

COUNT = amount(30, 3000)
# Those that take longest are shared out.
_PARTS = {"config of schnet": 3, "config of cosmic tagger": 3, "facts of a trained model": 3}
CASES = [
    (name, part, parts)
    for name in READERS
    for parts in [_PARTS.get(name, 1) if WHOLE else 1]
    for part in range(parts)
]


# Of QM9 as PyG keeps it.
@pytest.mark.filterwarnings("ignore:.*has energies in float32")
@pytest.mark.parametrize(("name", "part", "parts"), CASES)
def test_any_input_is_read_or_refused(name, part, parts, tmp_path, injected, survived):
    reader = READERS[name]()
    inputs = reader.inputs(COUNT)
    assert len({identity(one) for one in inputs}) >= COUNT
    for seed in reader.seeds:
        assert reader.read(seed, tmp_path) is not None, f"{seed!r:.300} is not read"

    def attempt(content):
        try:
            reader.read(content, tmp_path)
        except BaseException as error:
            if not reader.may_raise(error):
                error.add_note(f"{content!r:.300}")
                raise
            if ran_out_of_memory(error) and not reader.may_claim_memory:
                return f"{content!r:.300} takes too much memory: {str(error)[:200]}"
        return None

    mine = inputs[part::parts]
    injected("odd inputs to readers", len(mine))
    found = harms(mine, attempt)
    assert not found, f"{name}, {len(found)} of {len(mine)}:\n" + "\n".join(found)
    survived("odd inputs to readers", len(mine))
