"""BERT and GPT-2 of Hugging Face's `transformers`, from configurations: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

MODELS = ("BERT", "GPT-2")


@dataclass(frozen=True)
class Sizes:
    """Of a model and of a batch."""

    hidden: int = 768
    heads: int = 12
    layers: int = 2
    vocabulary: int = 30_522
    tokens: int = 128
    batch: int = 2


def sizes_of(*, tiny: bool) -> Sizes:
    """Return base-sized layers, or such that take no time."""
    return Sizes(hidden=16, heads=2, layers=1, vocabulary=50, tokens=8) if tiny else Sizes()


def make_model(name: str, sizes: Sizes) -> Any:
    """Return a language model with its loss, and without a cache of keys and values."""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    if name == "BERT":
        return BertForMaskedLM(
            BertConfig(
                vocab_size=sizes.vocabulary,
                hidden_size=sizes.hidden,
                num_hidden_layers=sizes.layers,
                num_attention_heads=sizes.heads,
                intermediate_size=4 * sizes.hidden,
            )
        )
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=sizes.vocabulary,
            n_embd=sizes.hidden,
            n_layer=sizes.layers,
            n_head=sizes.heads,
            use_cache=False,
        )
    )


def make_batch(sizes: Sizes) -> dict[str, torch.Tensor]:
    """Return token ids, and the same as labels."""
    generator = torch.Generator().manual_seed(0)
    shape = (sizes.batch, sizes.tokens)
    ids = torch.randint(0, sizes.vocabulary, shape, generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
