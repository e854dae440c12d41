"""Fine-tune with the trainer of sentence-transformers on pairs, half of them mismatched, with and without raydr.

python examples/own_trainer.py prints RR@10 of held-out queries: with the usual loss, and with raydr's loss and flags.
Needs ``datasets`` (the extra ``hf``) and ``sentence-transformers``, and the extra ``offline`` for the checkpoint.
"""

from __future__ import annotations

import tempfile

from datasets import Dataset
from made_pairs import make_pairs, mismatch_half
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn

import raydr
from raydr.integrations.sentence_transformers import NoisyPairLoss, add_flags
from raydr.models.checkpoint_settings import packaged_folder

BATCH_SIZE, NUM_EPOCHS = 32, 4


def train(model: SentenceTransformer, dataset: Dataset, loss: nn.Module) -> SentenceTransformer:
    """Train with the trainer of sentence-transformers."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=NUM_EPOCHS,
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=2e-4,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=0,
        )
        SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss).train()
    return model


def main() -> dict[str, float]:
    """Return RR@10 of held-out queries by the loss of the training."""
    pairs = make_pairs()
    held_out, noisy = pairs[:100], mismatch_half(pairs[100:])
    dataset = Dataset.from_dict(
        {"anchor": [query for query, _ in noisy], "positive": [passage for _, passage in noisy]}
    )
    measure = InformationRetrievalEvaluator(
        queries={f"q{at}": query for at, (query, _) in enumerate(held_out)},
        corpus={f"p{at}": passage for at, (_, passage) in enumerate(pairs)},
        relevant_docs={f"q{at}": {f"p{at}"} for at in range(len(held_out))},
        write_csv=False,
    )
    noise = raydr.find_noise(dataset, settings={"model": {"query": {"max_length": 24}, "passage": {"max_length": 24}}})
    print(noise.summary())

    def start() -> SentenceTransformer:
        return SentenceTransformer(str(packaged_folder()), device="cpu")

    def rr(model: SentenceTransformer) -> float:
        return float(measure(model)["cosine_mrr@10"])

    results = {"not trained": rr(start())}
    model = start()
    results["MultipleNegativesRankingLoss"] = rr(train(model, dataset, MultipleNegativesRankingLoss(model)))
    model = start()
    loss = NoisyPairLoss(model, steps_per_epoch=-(-len(dataset) // BATCH_SIZE))
    results["NoisyPairLoss"] = rr(train(model, add_flags(dataset, noise), loss))
    return results


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:<30} RR@10 {value:.3f}")
