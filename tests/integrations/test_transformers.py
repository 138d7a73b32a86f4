"""The `Trainer` of Transformers, checked: with a loss of its own, and with that of the model."""

import weakref
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from typing_extensions import TypedDict

from strictstep.schema import Reduce, Scalar, SkippedStep, StepOutputError, TrainingOutput
from strictstep.schema.integrations.transformers import CheckedTrainer, checked


class Rows(Dataset[dict[str, Tensor]]):
    """Forty rows of six tokens."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": torch.arange(6) + row % 7, "labels": torch.tensor(row % 2)}


def small_model() -> Any:
    """A BERT of one layer, from a configuration."""
    torch.manual_seed(0)
    sizes: Any = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 8}
    return BertForSequenceClassification(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))


class Penalized(Trainer):
    """A loss of its own, without strictstep."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The task's loss and a penalty."""
        outputs = model(**inputs)
        loss = outputs.loss + penalty(model)
        return (loss, outputs) if return_outputs else loss


class WithTerms(Trainer):
    """The same, with terms to log."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss as a mapping."""
        outputs = model(**inputs)
        terms = {"task": outputs.loss, "penalty": penalty(model), "rows": len(inputs["labels"])}
        return {"loss": outputs.loss + penalty(model), "log": terms, "metrics": {"logits": outputs.logits}}


Logged = checked(WithTerms)


class OwnStep(Trainer):
    """A step of its own, as that of the trainer."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Forward and backward."""
        model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()  # type: ignore[union-attr]


def penalty(model: Any) -> Tensor:
    """The mean square of the last weights."""
    return model.classifier.weight.pow(2).mean()  # type: ignore[no-any-return]


def trainer(kind: Any, folder: Path, model: Any = None, **options: Any) -> Any:
    """A quiet trainer for twenty steps on the CPU."""
    quiet = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "logging_steps": 5}
    # Without pinned memory: torch warns where there is no accelerator.
    given = {"max_steps": 20, "per_device_train_batch_size": 4, "seed": 1, "dataloader_pin_memory": False, **quiet}
    arguments = TrainingArguments(output_dir=str(folder), **{**given, **options})
    model = small_model() if model is None else model
    return kind(model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows())


def trained(kind: Any, folder: Path, **options: Any) -> Any:
    """The trainer after its training."""
    ready = trainer(kind, folder, **options)
    ready.train()
    return ready


def assert_same(left: Any, right: Any) -> None:
    for one, other in zip(left.model.parameters(), right.model.parameters(), strict=True):
        assert torch.equal(one, other)


def logged(ready: Any, name: str) -> list[Any]:
    """The values that the trainer's history holds under a name."""
    return [row[name] for row in ready.state.log_history if name in row]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_parameters_are_those_of_the_unchecked_run(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = trained(Trainer, tmp_path, **options)
    assert_same(plain, trained(CheckedTrainer, tmp_path, **options))
    penalized = trained(Penalized, tmp_path, **options)
    assert_same(penalized, trained(checked(Penalized), tmp_path, **options))
    assert_same(penalized, trained(Logged, tmp_path, **options))
    assert logged(penalized, "loss") == logged(trained(Logged, tmp_path, **options), "loss")
    assert plain.state.global_step == 20


def test_a_step_of_its_own_trains_the_same(tmp_path: Path) -> None:
    assert_same(trained(OwnStep, tmp_path), trained(checked(OwnStep), tmp_path))


def test_every_term_lands_in_the_logs_beside_the_loss_that_it_is_part_of(tmp_path: Path) -> None:
    ready = trained(Logged, tmp_path)
    sums = [task + penalty for task, penalty in zip(logged(ready, "task"), logged(ready, "penalty"), strict=True)]
    assert len(sums) == 4
    assert sums == pytest.approx(logged(ready, "loss"), abs=1e-6)


def test_the_terms_of_an_evaluation_are_its_metrics(tmp_path: Path) -> None:
    ready = trained(Logged, tmp_path, per_device_eval_batch_size=16, eval_strategy="steps", eval_steps=10)
    metrics = ready.evaluate()
    assert metrics["eval_task"] + metrics["eval_penalty"] == pytest.approx(metrics["eval_loss"], abs=1e-6)
    # The mean over examples: the last of three batches has eight.
    assert metrics["eval_rows"] == pytest.approx((32 * 16 + 8 * 8) / 40)
    assert len(logged(ready, "eval_task")) == 3
    assert ready.predict(Rows()).predictions.shape == (40, 2)
    assert "test_task" in ready.predict(Rows()).metrics


def test_a_model_may_log_itself(tmp_path: Path) -> None:
    class Model(nn.Module):
        """A model that returns a plain mapping."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(16, 2)

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Any]:
            """The loss, its terms, and an output of its own."""
            logits = self.table(input_ids).mean(1)
            task, size = nn.functional.cross_entropy(logits, labels), self.table.weight.pow(2).mean()
            return {"loss": task + size, "log": {"task": task, "size": size}, "logits": logits}

    ready = trained(CheckedTrainer, tmp_path, model=Model())
    assert_same(trained(Trainer, tmp_path, model=Model()), ready)
    assert len(logged(ready, "task")) == len(logged(ready, "size")) == 4


def test_a_schema_reduces_and_refuses(tmp_path: Path) -> None:
    class Log(TypedDict):
        task: Annotated[Scalar, Reduce("last")]
        penalty: Annotated[Scalar, Reduce("max")]
        rows: Annotated[Scalar, Reduce("sum")]

    class Output(TrainingOutput[Log]):
        """The terms, and no others."""

    ready = trained(checked(schema=Output)(WithTerms), tmp_path)
    assert logged(ready, "rows") == [20, 20, 20, 20]
    with pytest.raises(StepOutputError, match=r"log\.task: expected the name `task`"):
        trained(checked(schema=Output)(Penalized), tmp_path)


def wrong_trainer(returned: Any) -> Any:
    """A trainer whose `compute_loss` gives what `returned` makes of the loss."""

    @checked
    class Wrong(Trainer):
        """Wrong."""

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            """Anything."""
            return returned(model(**inputs).loss)

    return Wrong


@pytest.mark.parametrize(
    ("returned", "report"),
    [
        (Tensor.item, r"training step `Wrong\.compute_loss` returned an invalid output at epoch 0 "),
        (Tensor.detach, r"loss: expected a loss attached to the graph"),
        (lambda loss: (loss, {}), r"wrong_return_type"),
        (lambda loss: None, r"returned_none"),
        (lambda loss: SkippedStep(reason="no"), r"loss: expected a loss, since `Trainer` needs one .* got SkippedStep"),
    ],
)
def test_a_wrong_loss_stops_the_training_with_the_report(tmp_path: Path, returned: Any, report: str) -> None:
    with pytest.raises(StepOutputError, match=report):
        trained(wrong_trainer(returned), tmp_path)


def test_a_kept_error_keeps_no_graph(tmp_path: Path) -> None:
    seen: list[weakref.ref[Tensor]] = []

    def vector(loss: Tensor) -> Tensor:
        wrong = loss.repeat(2)
        seen.append(weakref.ref(wrong))
        return wrong

    with pytest.raises(StepOutputError, match="loss_not_scalar") as caught:
        trained(wrong_trainer(vector), tmp_path)
    assert caught.value.__traceback__
    assert seen[0]() is None


def test_a_wrong_step_stops_the_training_with_the_report(tmp_path: Path) -> None:
    @checked
    class Wrong(OwnStep):
        """It forgets what it returns."""

        def training_step(self, *args: Any, **options: Any) -> Any:
            """Nothing."""
            super().training_step(*args, **options)

    with pytest.raises(StepOutputError, match=r"expected a loss, since `Trainer` needs one .*, got None"):
        trained(Wrong, tmp_path)


def test_an_evaluation_takes_numbers(tmp_path: Path) -> None:
    ready = trainer(wrong_trainer(Tensor.item), tmp_path)
    assert ready.evaluate()["eval_loss"] > 0


def test_replicas_give_a_loss_each(tmp_path: Path) -> None:
    ready = trainer(CheckedTrainer, tmp_path)
    ready.args._n_gpu = 2
    outputs = {"loss": torch.ones(2, requires_grad=True) * 3}
    assert ready._with_fields(outputs["loss"], outputs)["loss"] == 3


def test_the_decorated_class_keeps_its_name() -> None:
    assert Logged.__name__ == "WithTerms"
    assert Logged.__module__ == __name__
    assert Logged.__doc__ == "The same, with terms to log."


@pytest.mark.parametrize("twice", [Logged, CheckedTrainer])
def test_a_class_is_checked_once(twice: Any) -> None:
    with pytest.raises(TypeError, match=f"expected a class that is not checked yet, got `{twice.__name__}`"):
        checked(twice)
