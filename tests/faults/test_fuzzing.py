"""Whatever is in a file: what is read is a value or an error of ours, soon, in little memory."""

from __future__ import annotations

import pytest
from _amount import amount
from _in_child import harms, ran_out_of_memory
from _readers import READERS


@pytest.mark.parametrize("name", READERS)
def test_any_input_is_read_or_refused(name, tmp_path, survived):
    reader = READERS[name]()
    inputs = reader.inputs(amount(30, 3000))

    def attempt(content):
        try:
            reader.read(content, tmp_path)
        except reader.errors as error:
            if ran_out_of_memory(error) and not reader.may_claim_memory:
                return f"{content!r:.300} takes too much memory: {str(error)[:200]}"
        except BaseException as error:
            error.add_note(f"{content!r:.300}")
            raise
        return None

    found = harms(inputs, attempt)
    assert not found, f"{name}, {len(found)} of {len(inputs)}:\n" + "\n".join(found)
    survived("odd inputs to readers", len(inputs))
