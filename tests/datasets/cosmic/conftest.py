"""CosmicTagger's five public events, where they are."""

from pathlib import Path

import pytest

EVENTS = Path(__file__).resolve().parents[4] / "shared" / "data" / "cosmic"


@pytest.fixture(scope="session")
def real_events():
    if not EVENTS.is_dir():
        pytest.skip(f"needs CosmicTagger's cosmic_tagging_light.h5 in {EVENTS}")
    from torchkiln.datasets.cosmic import Larcv3Events

    return Larcv3Events(EVENTS)
