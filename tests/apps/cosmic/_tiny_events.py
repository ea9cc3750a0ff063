"""A training of CosmicTagger that takes a second, and one that is stopped."""

import os
import signal

from torchkiln.apps.cosmic import CompiledDevice
from torchkiln.apps.cosmic._data import load_held_out_events, load_training_events
from torchkiln.apps.cosmic._judge import Judge
from torchkiln.apps.cosmic._tagger import make_tagger
from torchkiln.apps.cosmic._trainer import train

NETWORK = (
    "network.n_initial_filters=2",
    "network.network_depth=1",
    "network.blocks_per_layer=1",
    "network.blocks_deepest_layer=1",
    "network.bottleneck_deepest=4",
    "network.filter_size_deepest=3",
)


def run(settings, device=None, say=lambda text: None):
    device = device or CompiledDevice(settings)
    tagger = make_tagger(settings)
    images, held_out = load_training_events(settings.data), load_held_out_events(settings.data)
    judge = Judge(tagger, device, held_out, settings.run.minibatch_size)
    return tagger, train(settings, tagger, device, images, judge, say)


class Stopping:
    """A device on which the person presses Ctrl-C during one of the updates."""

    def __init__(self, device, update):
        self.device, self.update = device, update

    def __getattr__(self, name):
        return getattr(self.device, name)

    def make_training(self, module, optimizer):
        step = self.device.make_training(module, optimizer)
        stopping = self

        class Step:
            compile, use_learning_rate = step.compile, step.use_learning_rate

            def __call__(self, images, labels):
                stopping.update -= 1
                if stopping.update == 0:
                    os.kill(os.getpid(), signal.SIGINT)
                return step(images, labels)

        return Step()
