"""Loops of other libraries train a prepared model as they train the original."""

from __future__ import annotations

import inspect
from typing import Any

import torch

import prepbench as pb
from prepbench.objects.compare import sqnr
from tests.compile.adapt.models import batches, loss, trained
from tests.compile.adapt.test_trainable import prepared_of


def test_trainer_of_transformers_trains_it(tmp_path: Any) -> None:
    from transformers import Trainer, TrainingArguments

    model = trained("conv")
    prepared = prepared_of(model)
    x, y = batches(model)[0]
    before = prepared.head.weight.detach().clone()
    arguments = TrainingArguments(
        str(tmp_path),
        label_names=["labels"],
        max_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=100,
    )
    rows = [{"x": image, "labels": number} for image, number in zip(x, y, strict=True)]
    trainer = Trainer(
        prepared, arguments, train_dataset=rows, compute_loss_func=lambda output, labels, **_: loss(output, labels)
    )
    trainer.train()
    assert not torch.equal(prepared.head.weight, before)


class Sentences(torch.utils.data.Dataset[dict[str, Any]]):
    """Sequences of 50 words; whether more than half of them are of the first half is the class."""

    def __init__(self, count: int, seed: int) -> None:
        ids = torch.randint(0, 50, (count, 15), generator=torch.Generator().manual_seed(seed))
        self.rows = [{"input_ids": each, "labels": int((each < 25).sum() > 7), "source": 7} for each in ids]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def classifier() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
            num_labels=2,
            hidden_dropout_prob=0.0,
        )
    ).eval()


def test_trainer_finds_the_labels_of_the_original(tmp_path: Any) -> None:
    """Without label_names and remove_unused_columns; what is no argument of the original is dropped."""
    from transformers import Trainer, TrainingArguments, default_data_collator

    train, test = Sentences(512, 0), Sentences(200, 1)
    samples = [default_data_collator([dict(row) for row in train.rows[:count]]) for count in (8, 5)]
    for each in samples:
        del each["source"]
    model = classifier()
    prepared = pb.trainable(
        model,
        calibration_inputs=samples,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    assert inspect.signature(prepared.forward) == inspect.signature(model.forward)
    arguments = TrainingArguments(
        str(tmp_path),
        num_train_epochs=6,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        report_to=[],
        use_cpu=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        prepared,
        arguments,
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    after = trainer.evaluate()["eval_accuracy"]
    assert after > before + 0.1
    assert model.state_dict()["classifier.weight"].equal(classifier().state_dict()["classifier.weight"])

    compiled = pb.compile_model(prepared)
    with torch.no_grad():
        expected = prepared(**samples[0])
    found = compiled(**samples[0])
    assert sqnr(expected.logits, found.logits) > 40
    assert sqnr(expected.loss, found.loss) > 40
    trainer.save_model(str(tmp_path / "saved"))
    from safetensors.torch import load_file

    original = classifier()
    original.load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))
    assert torch.equal(original.classifier.weight, prepared.classifier.weight)
