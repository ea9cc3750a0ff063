"""optimum-graphcore: BERT from a local configuration trains with its `IPUTrainer`."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TORCHKILN_PRETEND_IPU"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["WANDB_DISABLED"] = "true"
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "_shared"))
sys.path.append(str(HERE / "stubs"))

from client_report import ClientReport

# Losses and weights after 20 updates of AdamW.
TOLERANCE = 1e-4
STEPS, BATCH_SIZE, RATE = 20, 8, 1e-3

with ClientReport("optimum-graphcore") as report:
    import torch
    from optimum.graphcore import IPUConfig, IPUTrainer, IPUTrainingArguments
    from transformers import BertConfig, BertForSequenceClassification, TrainerCallback

    report.imports = True
    report.detail = (
        "optimum-graphcore 0.7.1 with transformers 4.29.2, optimum 1.6.1 and diffusers 0.12.1, all "
        "installed without their dependencies; `popart`, of which it takes two numbers, is a stub; "
        "`IPUTrainer` trains a BERT of 2 layers from a local configuration, with "
        "`TORCHKILN_PRETEND_IPU=1`."
    )

    class Examples(torch.utils.data.Dataset):
        """Sequences whose label tells whether their first half has the larger sum."""

        def __init__(self) -> None:
            generator = torch.Generator().manual_seed(0)
            self.ids = torch.randint(5, 60, (STEPS * BATCH_SIZE, 16), generator=generator)

        def __len__(self) -> int:
            return len(self.ids)

        def __getitem__(self, index: int) -> dict[str, Any]:
            ids = self.ids[index]
            return {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "labels": torch.tensor(int(ids[0] > 30)),
            }

    class Losses(TrainerCallback):
        """Keeps what the trainer logs."""

        def __init__(self) -> None:
            self.values: list[float] = []

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            if "loss" in logs:
                self.values.append(logs["loss"])

    bert = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(bert)
    reference, other = copy.deepcopy(model), copy.deepcopy(model)

    def make_trainer(model: Any, losses: Losses) -> Any:
        arguments = IPUTrainingArguments(
            output_dir="out",
            per_device_train_batch_size=BATCH_SIZE,
            max_steps=STEPS,
            learning_rate=RATE,
            weight_decay=0.0,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_steps=STEPS // 2,
            dataloader_drop_last=True,
            fp32=True,
            report_to=[],
            disable_tqdm=True,
            seed=1,
        )
        options = IPUConfig(layers_per_ipu=[2], ipus_per_replica=1, executable_cache_dir="cache")

        class InOrder(IPUTrainer):
            """Takes examples in the order in which they are, as the comparison does."""

            def _get_train_sampler(self) -> Any:
                return torch.utils.data.SequentialSampler(self.train_dataset)

        return InOrder(
            model=model,
            ipu_config=options,
            args=arguments,
            train_dataset=Examples(),
            callbacks=[losses],
        )

    losses = Losses()
    trainer = make_trainer(model, losses)
    trainer.train()
    report.trains = len(losses.values) == STEPS and losses.values[-1] < losses.values[0]

    expected = []
    optimizer = torch.optim.AdamW(reference.parameters(), lr=RATE, weight_decay=0.0)
    for batch in torch.utils.data.DataLoader(Examples(), batch_size=BATCH_SIZE):
        optimizer.zero_grad()
        loss = reference(**batch).loss
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    # The trainer rounds what it logs to 4 digits.
    worst = max(abs(a - b) for a, b in zip(losses.values, expected, strict=True))
    trained = trainer.model.deparallelize().state_dict()
    difference = max(
        float((value - trained[name]).abs().max())
        for name, value in reference.state_dict().items()
        if name in trained and value.is_floating_point()
    )
    report.matches = worst <= TOLERANCE and difference <= TOLERANCE

    again = Losses()
    resumed = make_trainer(other, again)
    resumed.train(resume_from_checkpoint=f"out/checkpoint-{STEPS // 2}")
    report.checkpoints = len(again.values) == STEPS // 2 and all(
        abs(a - b) <= TOLERANCE
        for a, b in zip(again.values, losses.values[STEPS // 2 :], strict=True)
    )
    report.detail += (
        f" Loss {losses.values[0]:.3f} -> {losses.values[-1]:.3f} in {STEPS} updates; losses "
        f"differ from a loop of plain PyTorch by at most {worst:.1e}, weights by {difference:.1e}."
    )
