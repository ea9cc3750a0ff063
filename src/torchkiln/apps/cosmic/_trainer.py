"""`train`: a network on events, on the training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from torchkiln.apps.cosmic._data import Share, ShuffledOrder
from torchkiln.apps.cosmic._devices import Device
from torchkiln.apps.cosmic._judge import Judge
from torchkiln.apps.cosmic._progress import EventMonitor
from torchkiln.apps.cosmic._record import TrainingRecord
from torchkiln.apps.cosmic._saving import checkpoint_plan, make_saver, words_of
from torchkiln.apps.cosmic._settings import Settings
from torchkiln.apps.cosmic._tagger import Tagger, TaggerWithLoss
from torchkiln.apps.cosmic._task import EventBatches, EventTask
from torchkiln.datasets.cosmic import CosmicImages
from torchkiln.report import QuietMonitor, RunMonitor
from torchkiln.training._history import History
from torchkiln.training._interrupt import Interrupted
from torchkiln.training._loop import TrainingLoop
from torchkiln.training._ranks import Ranks
from torchkiln.training._saving import RunState
from torchkiln.training._schedule import RateSchedule, warmup_cosine


def train(
    settings: Settings,
    tagger: Tagger,
    device: Device,
    images: CosmicImages,
    judge: Judge,
    say: Callable[[str], None],
    command: str = "python cosmic_tagger.py",
    ranks: Ranks | None = None,
) -> TrainingRecord:
    """Train `tagger` until the epochs are done, or the person stops it.

    The first Ctrl-C (or SIGTERM) ends the run after the present update, and saves it. Several
    processes call it alike, each with a device of its own; rank 0 saves.

    Raises:
        Interrupted: The person stopped it.
        NonFiniteError: The loss is NaN or infinite.
        CheckpointError: There is a checkpoint but resuming was not asked for, or the other way
            round; or it was made with other settings; or the last one could not be written.
    """
    ranks = ranks or Ranks()
    optimizer, size = settings.mode.optimizer, settings.run.minibatch_size
    share = Share(size, ranks.copy, ranks.num_copies)
    images_per_update = share.round * optimizer.gradient_accumulation
    order = ShuffledOrder(len(images), images_per_update, settings.run.seed, share)
    num_updates = settings.run.epochs * order.num_batches
    module = TaggerWithLoss(tagger, optimizer.loss_balance_scheme).train()
    rule = device.make_optimizer(optimizer.name, module.parameters(), optimizer.learning_rate)

    def rate_at(update: int) -> float:
        return warmup_cosine(update, num_updates, optimizer.learning_rate, optimizer.warmup)

    state = RunState(
        module=module,
        network=tagger,
        optimizer=rule,
        batches=EventBatches(device.make_loader(images, size, order, training=True), order),
        schedule=RateSchedule(rule, rate_at),
    )
    with contextlib.ExitStack() as stack:
        saver, history = None, History()
        if settings.mode.checkpoint_epochs:
            saver = make_saver(settings, state, checkpoint_plan(settings, command), ranks)
            history = stack.enter_context(saver.opened())
        monitor: RunMonitor = EventMonitor(say) if ranks.is_first else QuietMonitor()
        stack.callback(monitor.close)
        step = device.make_training(module, rule)
        task = EventTask(step, judge, size, optimizer.gradient_accumulation, say, ranks)
        words = words_of(settings, command)
        loop = TrainingLoop(task, state, saver, history, monitor, words, ranks)
        outcome = loop.run(settings.run.epochs)
    if outcome.error is not None:
        raise ranks.common(outcome.error)
    if outcome.status == "interrupted":
        say(outcome.note)
        raise Interrupted
    return TrainingRecord.of(outcome.history, order.num_batches, outcome.world)
