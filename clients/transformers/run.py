"""Hugging Face's `transformers`: BERT, GPT-2 and ViT from configurations, nothing is downloaded.

Forward and the training step compile whole, and match eager PyTorch: logits, losses, gradients and
weights after each step, with dropout. Backend: TORCHKILN_BACKEND, else native code.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import traceback
from typing import Any

CLIENT = "transformers"
NUM_STEPS = 3
# Of logits and losses, and of weights; AdamW divides by the size of a gradient, so where that is
# nearly zero rounding decides where a weight goes, by a share of the learning rate.
TOLERANCE = 1e-4
LEARNING_RATE = 1e-3
WEIGHT_TOLERANCE = 0.05 * LEARNING_RATE
SEQUENCE, VOCABULARY, BATCH = 16, 99, 2


def make_bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=SEQUENCE,
        )
    )


def make_gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=SEQUENCE,
            n_embd=32,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=1,
        )
    )


def make_vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            image_size=16,
            patch_size=4,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            hidden_dropout_prob=0.1,
            num_labels=5,
        )
    )


def make_text(generator: Any) -> dict[str, Any]:
    """Return token ids with filler at the end of one text, and the same as labels."""
    import torch

    ids = torch.randint(2, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, SEQUENCE // 2 :] = 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
    }


def make_images(generator: Any) -> dict[str, Any]:
    import torch

    return {
        "pixel_values": torch.randn(BATCH, 3, 16, 16, generator=generator),
        "labels": torch.randint(0, 5, (BATCH,), generator=generator),
    }


FAMILIES = {
    "BERT": (make_bert, make_text),
    "GPT-2": (make_gpt2, make_text),
    "ViT": (make_vit, make_images),
}


def train_both(make: Any, make_batch: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Train a model through a program and in eager PyTorch; raise where they differ."""
    import torch

    from torchkiln import Options, inference_model, training_model

    torch.manual_seed(0)
    model = make().train()
    twin = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), LEARNING_RATE) for m in (model, twin))
    options = Options(show_progress=False)
    program = training_model(model, options, ours)
    generator = torch.Generator().manual_seed(1)
    batches = [make_batch(generator) for _ in range(NUM_STEPS)]
    for number, batch in enumerate(batches):
        # Dropout draws the same numbers in both.
        torch.manual_seed(number)
        got = program(**batch)
        torch.manual_seed(number)
        expected = twin(**batch)
        theirs.zero_grad()
        expected.loss.backward()
        theirs.step()
        close(got["loss"].reshape(()), expected.loss, "loss")
        close(got["logits"], expected.logits, "logits")
        for name, parameter in twin.named_parameters():
            # Adam's first momentum after one step is a tenth of the gradient.
            if number == 0 and parameter.grad is not None:
                momentum = ours.state[model.get_parameter(name)]["exp_avg"]
                close(momentum / 0.1, parameter.grad, f"gradient of {name}")
            close(model.get_parameter(name), parameter, name, WEIGHT_TOLERANCE)
    if (program.num_captures, program.num_compiles) > (1, 1):
        raise AssertionError(f"{program.num_captures} captures, {program.num_compiles} compiles")
    model.eval()
    twin.load_state_dict(model.state_dict())
    twin.eval()
    batch = {name: value for name, value in batches[0].items() if name != "labels"}
    infer = inference_model(model, options)
    for _ in range(2):  # what the second call returns is its own, too
        got = infer(**batch)
        with torch.no_grad():
            expected = twin(**batch)
        if list(got) != list(expected):
            raise AssertionError(f"{list(got)} instead of {list(expected)}")
        close(got.logits, expected.logits, "logits of inference")
        if "past_key_values" in got:
            caches = (got.past_key_values, expected.past_key_values)
            for layer, other in zip(*(cache.layers for cache in caches), strict=True):
                close(layer.keys, other.keys, "keys")
                close(layer.values, other.values, "values")
    return model, batches


def close(got: Any, expected: Any, what: str, tolerance: float = TOLERANCE) -> None:
    import torch

    torch.testing.assert_close(
        got.detach(),
        expected.detach(),
        rtol=TOLERANCE,
        atol=tolerance,
        msg=lambda text: f"{what}: {text}",
    )


def save_and_load(model: Any, batch: dict[str, Any]) -> None:
    """Save a model that a program trained with `save_pretrained`; what is loaded is the same."""
    import torch

    batch = {name: value for name, value in batch.items() if name != "labels"}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder, local_files_only=True).eval()
        close(loaded(**batch).logits, model(**batch).logits, "logits of the saved model", 1e-6)


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    record: dict[str, Any] = {
        "client": CLIENT,
        "imports": False,
        "trains": False,
        "checkpoints": False,
        "matches": False,
        "detail": "",
    }
    try:
        import transformers

        record["imports"] = True
        done = []
        for name, (make, make_batch) in FAMILIES.items():
            model, batches = train_both(make, make_batch)
            save_and_load(model, batches[0])
            done.append(name)
        record.update(trains=True, checkpoints=True, matches=True)
        record["detail"] = (
            f"transformers {transformers.__version__}: {', '.join(done)} from configurations, "
            f"{NUM_STEPS} steps and inference, whole and as in eager PyTorch"
        )
    except Exception as error:
        traceback.print_exception(error)
        record["detail"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
