"""CosmicTagger, from a CPU to a static program, in the words of PopTorch.

    python3 examples/cosmic_tagger.py --config configs/cosmic_quick.yml
    python3 examples/cosmic_tagger.py mode=train run.compute_mode=CPU data.downsample=16
    python3 examples/cosmic_tagger.py mode=inference run.id=first --file cosmic_tagging_light.h5
    python3 examples/cosmic_tagger.py mode=iotest

run.compute_mode CPU and CUDA train with plain PyTorch. IPU uses what stands below: all that changes
when a PyTorch program becomes a PopTorch program. docs/porting.md goes through it step by step.
Network, events, training loop and command line are in `torchkiln.apps.cosmic`.
"""

import os
import sys
import time

from torchkiln.apps.cosmic import main


def make_ipu(settings):
    # Here, because `--help` needs neither, and threads are pinned before torch is loaded.
    import poptorch
    from torchkiln.apps.cosmic import OptimizerKind

    if settings.run.backend is not None:
        # PopTorch has no word for it.
        os.environ["TORCHKILN_BACKEND"] = settings.run.backend

    def make_options(accumulation):
        opts = poptorch.Options()
        opts.Training.gradientAccumulation(accumulation)
        opts.outputMode(poptorch.OutputMode.All)
        opts.enableExecutableCaching(settings.run.executable_dir)
        opts.showCompilationProgressBar(sys.stderr.isatty())
        if settings.run.recompute is not None:
            opts._Popart.set("autoRecomputation", 4)
        return opts

    class TrainingStep:
        def __init__(self, module, optimizer):
            opts = make_options(settings.mode.optimizer.gradient_accumulation)
            self.model = poptorch.trainingModel(module, opts, optimizer=optimizer)
            self.optimizer = optimizer

        def compile(self, images, labels):
            # Warm-up: otherwise the first call would include the compilation.
            start = time.perf_counter()
            self.model.compile(images, labels)
            return time.perf_counter() - start

        def __call__(self, images, labels):
            counts, losses = self.model(images, labels)
            return counts.reshape(-1, 3, 3).sum(dim=0), losses.reshape(-1)

        def use_learning_rate(self):
            self.model.setOptimizer(self.optimizer)

    class Ipu:
        def make_optimizer(self, kind, parameters, learning_rate):
            if kind is OptimizerKind.rmsprop:
                return poptorch.optim.RMSprop(parameters, learning_rate, eps=1e-4)
            if kind is OptimizerKind.sgd:
                return poptorch.optim.SGD(parameters, learning_rate, momentum=0.9)
            return poptorch.optim.Adam(parameters, learning_rate)

        def make_loader(self, dataset, batch_size, sampler, *, training):
            accumulation = settings.mode.optimizer.gradient_accumulation if training else 1
            return poptorch.DataLoader(
                make_options(accumulation),
                dataset,
                batch_size=batch_size,
                sampler=sampler,
                num_workers=settings.data.num_workers,
                # Under torchrun the sampler deals out events by itself.
                auto_distributed_partitioning=False,
            )

        def make_training(self, module, optimizer):
            return TrainingStep(module, optimizer)

        def make_inference(self, module):
            return poptorch.inferenceModel(module, make_options(1))

    return Ipu()


if __name__ == "__main__":
    sys.exit(main(make_ipu=make_ipu))
