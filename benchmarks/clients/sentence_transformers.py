"""sentence-transformers: embeddings of texts about the same topics, with a Hugging Face Trainer."""

import random
from tempfile import TemporaryDirectory
from typing import Any

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from benchmarks.clients import Callbacks
from hybrid_predict.integrations.huggingface import HybridPredictCallback

TOPICS = 100
OWN = 12
COMMON = 400
PAIRS = 4096
"""Topics, words of each, words of none, and pairs of texts; each text has two topics."""


def data(seed: int) -> Any:
    draw = random.Random(seed)
    rows = [pair(draw) for _ in range(PAIRS + 640)]
    both = [{"anchor": a, "positive": b} for a, b in rows]
    return Dataset.from_list(both[:PAIRS]), Dataset.from_list(both[PAIRS:])


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    added = [HybridPredictCallback(config=c.config, log_dir=None) for c in callbacks]
    with TemporaryDirectory() as folder:
        save_untrained(folder)
        words = Transformer(folder)
        model = SentenceTransformer(modules=[words, Pooling(128)], device="cpu")
        args = SentenceTransformerTrainingArguments(
            folder, num_train_epochs=length, per_device_train_batch_size=64, use_cpu=True,
            per_device_eval_batch_size=64, learning_rate=5e-4, warmup_ratio=0.1,
            save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model=model, args=args, train_dataset=data[0], eval_dataset=data[1],
            loss=MultipleNegativesRankingLoss(model), callbacks=added,
        )  # fmt: skip
        trainer.train()
    for callback, used in zip(callbacks, added, strict=True):
        callback.engine = used.engine
    return trainer


def quality(trained: Any, data: Any) -> float:
    return float(trained.evaluate()["eval_loss"])


def pair(draw: random.Random) -> tuple[str, str]:
    """Return two texts of 12 words, 6 of which are of the same two topics."""
    topics = draw.sample(range(TOPICS), 2)
    texts = []
    for _ in range(2):
        own = [f"t{k}x{draw.randrange(OWN)}" for k in topics for _ in range(3)]
        words = own + [f"c{draw.randrange(COMMON)}" for _ in range(6)]
        texts.append(" ".join(draw.sample(words, len(words))))
    return texts[0], texts[1]


def save_untrained(folder: str) -> None:
    """Save a BERT with random weights, and its tokenizer of whole words."""
    words = ["[PAD]", "[UNK]", *(f"c{k}" for k in range(COMMON)),
             *(f"t{k}x{j}" for k in range(TOPICS) for j in range(OWN))]  # fmt: skip
    tokenizer = Tokenizer(models.WordLevel({w: k for k, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )
    fast.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words), hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
