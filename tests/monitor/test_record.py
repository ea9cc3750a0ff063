from __future__ import annotations

import json

from _monitor_samples import sample_machine, sample_process

from torchkiln.monitor import TrainingStatus
from torchkiln.monitor._record import status_json


def test_the_record_has_every_field():
    record = json.loads(status_json(sample_machine(sample_process())))
    assert record["record_version"] == 1
    (process,) = record["processes"]
    assert process["pid"] == 205698
    assert process["programs"][0]["steps_per_s"] == 81.25
    assert process["training"]["samples_per_s"] == 7791.4
    assert record["others"] == [{"pid": 77, "user": "somebody", "seconds": 90.0}]


def test_a_loss_that_is_no_number_is_null():
    training = TrainingStatus(
        epoch=1, num_epochs=1, loss=float("nan"), samples=1, samples_per_s=None
    )
    record = json.loads(status_json(sample_machine(sample_process(training=training))))
    assert record["processes"][0]["training"]["loss"] is None
