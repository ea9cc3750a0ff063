"""Whatever bit of a file is flipped, and wherever it is cut: an error, a fallback, the same values.

Every format that Torchkiln writes and reads back is here; never does other content come out of it,
and no process ends or waits for ever.
"""

from __future__ import annotations

import pytest
from _amount import amount
from _damage_to_files import harms_of_damage
from _kept_things import KEPT_THINGS


@pytest.mark.parametrize("thing", KEPT_THINGS)
def test_damage_is_noticed_or_has_no_effect(thing, tmp_path, injected, survived):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    kept = KEPT_THINGS[thing](folder)
    for path in kept.files:
        found, number = harms_of_damage(kept, path, amount(6, 200))
        injected("bits flipped and files cut", number)
        assert not found, f"{thing}, {len(found)} of {number}:\n" + "\n".join(found)
        survived("bits flipped and files cut", number)
