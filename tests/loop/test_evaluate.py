"""`evaluate`: a pass without gradients, which leaves the model as it found it."""

import math
import warnings
from typing import Annotated, Any

import pytest
import torch
import torchmetrics
from torch import nn
from typing_extensions import TypedDict

from strictstep.loop import LoopError, LoopWarning, evaluate
from strictstep.schema import EvaluationOutput, Reduce, Scalar, SkippedStep, StepOutputError


def mse(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).pow(2).mean()


def test_the_loss_is_that_of_all_examples_whatever_the_batches(model: Any, make_batch: Any) -> None:
    batches = [make_batch(n, n) for n in (8, 8, 3)]
    whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    assert evaluate(model, mse, batches)["loss"] == pytest.approx(mse(model, whole).item(), rel=1e-12)


def test_no_gradient_is_made_and_every_module_is_in_eval_mode(model: Any, make_batch: Any) -> None:
    seen: list[Any] = []

    def validation_step(model: Any, batch: Any) -> Any:
        seen.append((model.training, torch.is_grad_enabled(), mse(model, batch).requires_grad))
        return 0

    evaluate(model, validation_step, [make_batch()])
    assert seen == [(False, False, False)]


@pytest.mark.parametrize("fails", [False, True])
def test_each_module_gets_its_own_mode_back(fails: bool) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Dropout(), nn.Sequential(nn.Linear(2, 2).eval()))
    modes = [module.training for module in model.modules()]

    def validation_step(model: Any, batch: Any) -> Any:
        if fails:
            raise KeyError("label")
        return model(batch).sum()

    if fails:
        with pytest.raises(KeyError, match=r"^'label'\nin validation step `validation_step`, epoch 0, batch 0$"):
            evaluate(model, validation_step, [torch.ones(2, 2)])
    else:
        evaluate(model, validation_step, [torch.ones(2, 2)])
    assert [module.training for module in model.modules()] == modes


def test_a_loss_that_is_not_finite_is_shown() -> None:
    losses = iter([1.0, float("nan"), 2.0])
    values = evaluate(nn.Identity(), lambda model, batch: next(losses), [torch.ones(1)] * 3)
    assert math.isnan(values["loss"])


def test_a_schema_declares_reductions() -> None:
    class Log(TypedDict):
        images: Annotated[Scalar, Reduce("sum")]

    values = evaluate(
        nn.Identity(),
        lambda model, batch: {"log": {"images": len(batch)}},
        [torch.ones(3), torch.ones(5)],
        schema=EvaluationOutput[Log],
    )
    assert values == {"images": 8}


def test_none_is_an_output_without_values_and_a_pass_of_none_alone_is_warned_of() -> None:
    returns = iter([None, 3.0])
    assert evaluate(nn.Identity(), lambda model, batch: next(returns), [1, 2], weight=1) == {"loss": 3.0}
    with pytest.warns(LoopWarning, match=r"^`<lambda>` returned None from 2 batches: was a `return` forgotten\?$"):
        assert evaluate(nn.Identity(), lambda model, batch: None, [1, 2], weight=1) == {}


def test_a_pass_of_empty_dicts_and_skips_is_not_warned_of() -> None:
    returns = iter([{}, SkippedStep(reason="no boxes")])
    assert evaluate(nn.Identity(), lambda model, batch: next(returns), [1, 2], weight=1) == {}


def test_a_step_that_leaves_its_values_to_epoch_end_is_not_warned_of() -> None:
    assert evaluate(nn.Identity(), lambda model, batch: None, [1], weight=1, epoch_end=lambda outputs: None) == {}


def test_a_wrong_output_names_the_stage_the_step_and_the_batch() -> None:
    returns = iter([torch.tensor(1.0), torch.ones(3)])

    def test_the_model(model: Any, batch: Any) -> Any:
        return next(returns)

    with pytest.raises(
        StepOutputError, match=r"^test step `test_the_model` returned .* at epoch 0, batch 1 "
    ) as caught:
        evaluate(nn.Identity(), test_the_model, [torch.ones(2)] * 2, stage="test")
    assert [problem.code for problem in caught.value.problems] == ["loss_not_scalar"]


def test_a_stop_iteration_of_the_step_is_an_error_that_names_it() -> None:
    def validation_step(model: Any, batch: Any) -> Any:
        return next(iter([]))

    with pytest.raises(LoopError, match=r"step `validation_step` to return, got a StopIteration") as caught:
        evaluate(nn.Identity(), validation_step, [torch.ones(2)])
    assert caught.value.code == "stop_iteration"


def test_no_batches_is_an_error() -> None:
    with pytest.raises(LoopError, match=r"expected at least one batch from `batches` in epoch 0, got none") as caught:
        evaluate(nn.Identity(), lambda model, batch: None, [])
    assert caught.value.code == "loader_empty"


def test_a_step_that_asks_for_optimizers_is_refused() -> None:
    def step(model: Any, batch: Any, optimizers: Any) -> Any: ...

    with pytest.raises(LoopError, match=r"expected a validation step without optimizers, got `step`") as caught:
        evaluate(nn.Identity(), step, [torch.ones(2)])
    assert caught.value.code == "step_signature"


def test_the_step_gets_what_it_names() -> None:
    seen: list[Any] = []

    def validation_step(model: Any, batch: Any, batch_idx: int, epoch: int, global_step: int, hiddens: Any) -> Any:
        seen.append((batch_idx, epoch, global_step, hiddens))
        return 0

    evaluate(nn.Identity(), validation_step, [torch.ones(2)] * 2)
    assert seen == [(0, 0, 0, None), (1, 0, 0, None)]


def test_torchmetrics_are_computed_and_reset() -> None:
    metric = torchmetrics.MeanSquaredError()

    def validation_step(model: Any, batch: Any) -> Any:
        metric.update(*batch)
        return {"metrics": {"mse": metric}}

    batches = [(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])), (torch.tensor([0.0]), torch.tensor([1.0]))]
    assert evaluate(nn.Identity(), validation_step, batches) == {"mse": pytest.approx(5 / 3)}
    assert evaluate(nn.Identity(), validation_step, batches) == {"mse": pytest.approx(5 / 3)}
    assert metric.total == 0


def test_a_collection_of_torchmetrics_gives_a_value_by_the_name_of_each() -> None:
    metrics = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()])

    def validation_step(model: Any, batch: Any) -> Any:
        metrics.update(*batch)
        return {"metrics": {"error": metrics}}

    batch = (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    assert evaluate(nn.Identity(), validation_step, [batch]) == {
        "error_MeanSquaredError": 2.0,
        "error_MeanAbsoluteError": 1.0,
    }


def test_epoch_end_gets_the_values_of_every_batch_and_gives_scalars() -> None:
    def epoch_end(outputs: Any, stage: str, epoch: int) -> Any:
        assert (stage, epoch) == ("validation", 0)
        return {"largest": torch.cat(outputs["x"]).max()}

    values = evaluate(
        nn.Identity(), lambda model, batch: {"metrics": {"x": batch}}, [torch.ones(3), torch.full((2,), 7.0)],
        epoch_end=epoch_end,
    )  # fmt: skip
    assert values == {"largest": 7.0}


def test_what_epoch_end_returns_wrongly_is_an_error() -> None:
    with pytest.raises(StepOutputError, match=r"returned an invalid output") as caught:
        evaluate(
            nn.Identity(), lambda model, batch: None, [torch.ones(2)], epoch_end=lambda outputs: {"a": torch.ones(3)}
        )
    assert [(problem.code, problem.path) for problem in caught.value.problems] == [("scalar_not_single", "log.a")]


def test_an_error_of_epoch_end_keeps_its_type_and_says_where_it_was() -> None:
    def epoch_end(outputs: Any) -> Any:
        return outputs["missing"]

    with pytest.raises(KeyError, match=r"^'missing'\nin epoch_end function `epoch_end`, epoch 0$"):
        evaluate(nn.Identity(), lambda model, batch: None, [torch.ones(2)], epoch_end=epoch_end)


def test_a_loader_that_raises_keeps_its_exception_and_says_where_it_was() -> None:
    def batches() -> Any:
        yield torch.ones(2)
        raise OSError("disk gone")

    with pytest.raises(OSError, match=r"^disk gone\nin `batches`, epoch 0, batch 1$"):
        evaluate(nn.Identity(), lambda model, batch: None, batches())


def test_bf16_runs_the_step_under_autocast() -> None:
    seen: list[Any] = []

    def validation_step(model: Any, batch: Any) -> Any:
        seen.append(model(batch).dtype)
        return 0

    evaluate(nn.Linear(2, 2), validation_step, [torch.ones(2, 2)], precision="bf16-mixed")
    assert seen == [torch.bfloat16]


def test_a_batch_without_a_number_of_examples_counts_as_one_and_says_so_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert evaluate(nn.Identity(), lambda model, batch: float(batch), ["1", "3"]) == {"loss": 2.0}
    assert [str(warning.message) for warning in caught] == [
        "no tensor has a dimension 0: each batch counts as 1; or pass `weight=`"
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"log_every": 0}, "expected a positive int as `log_every`, got int 0"),
        ({"strict": "yes"}, "expected True or False as `strict`, got str 'yes'"),
    ],
)
def test_a_wrong_option_is_refused_before_the_first_batch(option: Any, message: Any) -> None:
    with pytest.raises(LoopError) as caught:
        evaluate(nn.Identity(), lambda model, batch: None, iter([torch.ones(2)]), **option)
    assert (caught.value.code, caught.value.message) == ("option", message)


def test_the_bar_of_an_evaluation_is_of_no_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(nn.Identity(), lambda model, batch: batch.mean(), [torch.ones(2)], progress_bar=True)
    assert capsys.readouterr().err.startswith("evaluation  loss 1.000  (1 step in ")


def test_a_metric_forgets_a_pass_that_failed() -> None:
    metric = torchmetrics.MeanMetric()
    numbers = iter([100.0, None, 1.0])

    def validation_step(model: Any, batch: Any) -> Any:
        if (number := next(numbers)) is None:
            raise KeyError("label")
        metric.update(number)
        return {"metrics": {"mean": metric}}

    with pytest.raises(KeyError):
        evaluate(nn.Identity(), validation_step, [torch.ones(1)] * 2)
    assert evaluate(nn.Identity(), validation_step, [torch.ones(1)]) == {"mean": 1.0}


class Merging(nn.Linear):
    """Merges an adapter for inference and takes it out for training, in its `train`, as LoRA layers do."""

    merged = False

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.merged = not mode
        return self


@pytest.mark.parametrize("frozen", [False, True])
def test_modules_come_back_from_validation_by_their_own_train(frozen: bool) -> None:
    merging = Merging(2, 2)
    model = nn.Sequential(merging, nn.Linear(2, 1))
    merging.train(not frozen)
    evaluate(model, lambda model, batch: model(batch).sum(), [torch.ones(2, 2)])
    assert [module.training for module in model] == [not frozen, True]
    assert merging.merged is frozen


def test_an_epoch_end_must_return_names() -> None:
    wrong: list[Any] = [0.0, 0.5, torch.ones(2), []]
    for returned in wrong:
        with pytest.raises(LoopError, match="expected names and scalars from the epoch_end function at epoch 0") as got:
            evaluate(nn.Identity(), lambda m, b: 1.0, [torch.ones(1)], epoch_end=lambda outputs, r=returned: r)
        assert got.value.code == "epoch_end_return"


class Refusing(nn.Linear):
    """A frozen part that cannot be put into training mode."""

    def train(self, mode: bool = True) -> Any:
        if mode:
            raise RuntimeError("frozen")
        return super().train(mode)


def test_parts_that_were_in_eval_mode_are_left_there_without_a_call() -> None:
    model = nn.Sequential(Refusing(2, 2), nn.Linear(2, 1))
    model[0].training = False
    evaluate(model, lambda model, batch: model(batch).sum(), [torch.ones(2, 2)])
    assert [module.training for module in model.modules()] == [True, False, True]


def test_a_part_that_two_parents_share_gets_its_own_mode_back() -> None:
    shared = nn.Dropout()
    student, teacher = Merging(2, 2), Merging(2, 2)
    student.shared = teacher.shared = shared
    model = nn.ModuleList([student, teacher])
    teacher.train(False)
    student.train(True)
    evaluate(model, lambda model, batch: 1.0, [torch.ones(2, 2)])
    assert (student.training, teacher.training, shared.training) == (True, False, True)
    assert (student.merged, teacher.merged) == (False, True)


def test_a_metric_whose_compute_fails_is_reset_and_so_are_the_others() -> None:
    class Failing(torchmetrics.MeanMetric):
        def compute(self) -> Any:
            raise ZeroDivisionError

    metrics = {"bad": Failing(), "good": torchmetrics.MeanMetric()}

    def validation_step(model: Any, batch: Any) -> Any:
        for metric in metrics.values():
            metric.update(1.0)
        return {"metrics": metrics}

    with pytest.raises(ZeroDivisionError):
        evaluate(nn.Identity(), validation_step, [torch.ones(1)])
    assert [float(metric.weight) for metric in metrics.values()] == [0, 0]


def deployed() -> Any:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 1)).eval()
    yield torch.jit.freeze(torch.jit.script(model))
    yield torch.export.export(model, (torch.ones(2, 3),)).module()


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("number", [0, 1])
def test_a_model_that_was_deployed_is_evaluated_as_it_is(number: int) -> None:
    model = list(deployed())[number]
    batch = torch.ones(2, 3)
    assert evaluate(model, lambda model, batch: model(batch).sum(), [batch]) == {"loss": model(batch).sum().item()}


def test_a_model_that_cannot_be_put_into_eval_mode_is_not_evaluated_in_training_mode() -> None:
    class Stubborn(nn.Linear):
        def train(self, mode: bool = True) -> Any:
            raise NotImplementedError("no modes here")

    with pytest.raises(NotImplementedError, match=r"^no modes here"):
        evaluate(Stubborn(3, 1), lambda model, batch: model(batch).sum(), [torch.ones(2, 3)])
