"""Training in all compute modes: same numbers, exact resume."""

import pytest
import torch
from _tiny_events import Stopping, run

from torchkiln.apps.cosmic import CompiledDevice, PlainDevice
from torchkiln.apps.cosmic._data import load_held_out_events, load_training_events
from torchkiln.apps.cosmic._judge import Judge
from torchkiln.apps.cosmic._saving import load_weights
from torchkiln.apps.cosmic._tagger import TaggerWithLoss, make_tagger
from torchkiln.apps.cosmic._trainer import train
from torchkiln.core import CheckpointError, NonFiniteError, OptionsError
from torchkiln.training._interrupt import Interrupted

# Sums in another order. Adam and RMSprop divide a gradient by its size: where it is nearly zero,
# rounding decides in which direction the weight moves, so not every single weight can agree.
LOSS_TOLERANCE = 1e-4
SHARE_OF_MOVEMENT = 0.1


@pytest.mark.parametrize(
    ("name", "accumulation", "backend"),
    [
        ("adam", 1, "capture"),
        ("rmsprop", 2, "capture"),
        ("sgd", 1, "capture"),
        pytest.param("adam", 1, "inductor", marks=[pytest.mark.inductor, pytest.mark.slow]),
    ],
)
def test_a_program_equals_plain_pytorch_for_five_updates(
    tiny, cache_dir, name, accumulation, backend
):
    settings = tiny(
        f"run.backend={backend}",
        f"run.cache_dir={cache_dir}",
        f"mode.optimizer.name={name}",
        f"mode.optimizer.gradient_accumulation={accumulation}",
        "mode.optimizer.learning_rate=0.0001",
    )
    images = load_training_events(settings.data)
    initial = make_tagger(settings).state_dict()
    steps, taggers = [], []
    for kind in (PlainDevice, CompiledDevice):
        device, tagger = kind(settings), make_tagger(settings)
        module = TaggerWithLoss(tagger, "light").train()
        optimizer = device.make_optimizer(
            settings.mode.optimizer.name, module.parameters(), settings.mode.optimizer.learning_rate
        )
        steps.append(device.make_training(module, optimizer))
        taggers.append(tagger)
    size = 2 * accumulation
    for update in range(5):
        chosen = [(update * size + number) % len(images) for number in range(size)]
        batch = [torch.stack(parts) for parts in zip(*(images[i] for i in chosen), strict=True)]
        (counts, losses), (program_counts, program_losses) = (step(*batch) for step in steps)
        torch.testing.assert_close(program_losses, losses, rtol=LOSS_TOLERANCE, atol=0)
        assert program_counts.sum() == counts.sum() == size * 3 * 20 * 32
    plain, compiled = (tagger.state_dict() for tagger in taggers)
    for key in plain:
        moved = (plain[key] - initial[key]).abs().double().mean()
        apart = (plain[key] - compiled[key]).abs().double().mean()
        assert moved > 0, key
        assert apart <= SHARE_OF_MOVEMENT * moved, key


def test_a_run_that_was_stopped_and_resumed_gives_the_same_bits(tiny):
    straight, history = run(tiny("run.epochs=2", "run.id=straight"))
    settings = tiny("run.epochs=2", "run.id=stopped")
    said = []
    with pytest.raises(Interrupted):
        run(settings, Stopping(CompiledDevice(settings), 5), said.append)
    assert "interrupted after 5 of 6 updates and saved" in said[-1]
    resumed, resumed_history = run(tiny("run.epochs=2", "run.id=stopped", "mode.resume=true"))
    assert resumed_history.losses == history.losses
    assert len(history.losses) == 6
    assert [record.held_out for record in resumed_history.epochs] == [
        record.held_out for record in history.epochs
    ]
    for name, tensor in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name


def test_checkpoints_are_neither_overwritten_nor_mixed_up(tiny):
    settings = tiny()
    run(settings, PlainDevice(settings))
    with pytest.raises(CheckpointError, match=r"mode\.resume=true, or choose another run\.id"):
        run(tiny())
    with pytest.raises(CheckpointError, match=r"data\.seed=9 \(the checkpoint has 1\)"):
        run(tiny("mode.resume=true", "data.seed=9"))
    other = tiny("network.n_initial_filters=3")
    with pytest.raises(CheckpointError, match="is of a network with"):
        load_weights(other)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*other"):
        run(tiny("run.id=other", "mode.resume=true"))


def test_a_loss_that_is_not_finite_ends_the_run(tiny):
    settings = tiny("mode.checkpoint_epochs=0")
    device = PlainDevice(settings)
    tagger = make_tagger(settings)
    with torch.no_grad():
        next(tagger.parameters()).fill_(float("nan"))
    images = load_training_events(settings.data)
    judge = Judge(tagger, device, images, 2)
    with pytest.raises(NonFiniteError, match=r"update 1: lower mode\.optimizer\.learning_rate"):
        train(settings, tagger, device, images, judge, print)


def test_held_out_events_are_counted_once_each(tiny):
    settings = tiny()
    device, tagger = PlainDevice(settings), make_tagger(settings)
    held_out = load_held_out_events(settings.data)
    judge = Judge(tagger, device, held_out, 2)
    metrics, shown = judge.judge(num_shown=3)
    assert [event.number for event in shown] == [0, 1, 2]
    assert metrics == Judge(tagger, device, held_out, 1).judge().metrics
    assert metrics == Judge(tagger, CompiledDevice(settings), held_out, 3).judge().metrics


@pytest.mark.parametrize("kind", [PlainDevice, CompiledDevice], ids=["CPU", "IPU"])
def test_lower_precision_computes_in_it_and_warns_where_it_is_slow(tiny, monkeypatch, kind):
    monkeypatch.setattr("torchkiln.runtime.execute._precision._warned", set())
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    settings = tiny("run.precision=bfloat16")
    with pytest.warns(UserWarning, match="this CPU has no bfloat16 arithmetic"):
        device = kind(settings)
    tagger = make_tagger(settings)
    dtypes = set()
    tagger.network.last.register_forward_hook(lambda *call: dtypes.add(call[2].dtype))
    Judge(tagger, device, load_held_out_events(settings.data), 3).judge()
    assert dtypes == {torch.bfloat16}
    assert {parameter.dtype for parameter in tagger.parameters()} == {torch.float32}


def test_background_can_be_asked_to_be_more_likely(tiny):
    settings = tiny()
    device, tagger = PlainDevice(settings), make_tagger(settings)
    images = load_held_out_events(settings.data)
    found = [
        Judge(tagger, device, images, 3, odds).judge().metrics.non_background_accuracy
        for odds in (1e-6, 1.0, 1e6)
    ]
    # Nothing is background any more: what is missing are mistakes between the other two.
    assert found[0] == 0
    assert found[0] <= found[1] <= found[2]
    assert found[2] > 0


def test_without_a_gpu_its_mode_is_refused(tiny, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(OptionsError, match="CUDA, but torch finds no GPU"):
        PlainDevice(tiny("run.compute_mode=CUDA"))
