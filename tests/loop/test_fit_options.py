"""Wrong options of `fit`: all of them in one error, before the first batch, without iterating anything."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from strictstep.loop import Checkpoint, EarlyStopping, LoopError, fit
from strictstep.schema import EvaluationOutput


class Untouched:
    """Batches that must not be iterated."""

    def __iter__(self) -> Any:
        pytest.fail("options were checked by iterating")


def step(model: Any, batch: Any) -> Any:
    return model(batch).sum()


def refused(**options: Any) -> LoopError:
    """The error for options, all others being right."""
    model = options.pop("model", None) or nn.Linear(2, 1)
    optimizer = options.pop("optimizer") if "optimizer" in options else SGD(model.parameters(), lr=0.1)
    training_step, batches = options.pop("training_step", step), options.pop("train_batches", Untouched())
    with pytest.raises(LoopError, match=r"^expected") as caught:
        fit(model, training_step, batches, **{"optimizer": optimizer, "max_epochs": 2, **options})
    assert caught.value.code == "option"
    return caught.value


POSITIVE = ["max_epochs", "max_steps", "gradient_accumulation_steps", "validate_every", "log_every"]


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0, -1, 1.0, "3", True])
def test_counts_are_positive_ints(name: str, value: Any) -> None:
    assert refused(**{name: value}).message.startswith(f"expected a positive int as `{name}`, got ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_epochs": None}, "expected an end of training, got None as `max_epochs` and as `max_steps`"),
        (
            {"carry_hiddens": True},
            "expected a step that names `hiddens`, to carry them, got one that does not",
        ),
        ({"seed": 2**64}, "expected an int from 0 to 2**64 - 1 as `seed`, got int of 65 bits"),
        ({"seed": -1}, "expected an int from 0 to 2**64 - 1 as `seed`, got int -1"),
        ({"strict": 1}, "expected True or False as `strict`, got int 1"),
        ({"progress_bar": None}, "expected True or False as `progress_bar`, got None"),
        ({"after_step": 3}, "expected a function as `after_step`, got int 3"),
        ({"epoch_end": []}, "expected a function as `epoch_end`, got list of length 0"),
        ({"loggers": ["run.jsonl"]}, "expected loggers, got str 'run.jsonl' among `loggers`"),
        ({"validation_step": step}, "expected `validation_batches` beside `validation_step`, got None"),
        ({"validation_batches": Untouched()}, "expected `validation_step` beside `validation_batches`, got None"),
        ({"train_batches": 3}, "expected batches as `train_batches`, got int 3"),
        ({"train_batches": []}, "expected at least one batch in `train_batches`, got none"),
        (
            {"train_batches": iter([1])},
            "expected batches that can be iterated 2 times as `train_batches`, got list_iterator object",
        ),
        ({"precision": "fp8"}, "expected 'fp32', 'bf16-mixed', 'fp16-mixed' as `precision`, got str 'fp8'"),
        ({"on_none": "ignore"}, "expected 'skip' or 'error' as `on_none`, got str 'ignore'"),
        ({"on_non_finite": "x"}, "expected 'error', 'skip' or 'keep' as `on_non_finite`, got str 'x'"),
        ({"max_grad_norm": -1}, "expected a positive number as `max_grad_norm`, got int -1"),
        ({"weight": 0}, "expected a positive, finite number as weight, got int 0 from `weight`"),
        ({"device": "gpu"}, "expected a device, got str 'gpu'"),
        ({"device": "meta"}, "expected a model on meta, where its batches go, got one on cpu"),
        ({"tbptt": 35}, "expected (steps, dim) as `tbptt`, got int 35"),
        ({"tbptt": (0, 1)}, "expected (steps, dim) as `tbptt`, got tuple[int, int]"),
        (
            {"tbptt": (5, 1), "gradient_accumulation_steps": 2},
            "expected `gradient_accumulation_steps` of 1 with `tbptt`, got 2",
        ),
        (
            {
                    "carry_hiddens": True,
                    "gradient_accumulation_steps": 2,
                    "training_step": lambda model, batch, hiddens: None,
                },
            "expected `gradient_accumulation_steps` of 1 with `carry_hiddens`, got 2",
        ),
        ({"scheduler": "cosine"}, "expected a learning-rate scheduler, got str 'cosine'"),
        ({"scheduler_interval": "batch"}, "expected 'step' or 'epoch' as `scheduler_interval`, got str 'batch'"),
        ({"early_stopping": "val_loss"}, "expected an `EarlyStopping` as `early_stopping`, got str 'val_loss'"),
        ({"checkpoint": 3}, "expected a folder as `checkpoint`, got int 3"),
        ({"resume": 3}, "expected a path, or True, as `resume`, got int 3"),
        ({"resume": True}, "expected `checkpoint` with `resume=True`, got None"),
        (
            {"model": "resnet", "optimizer": SGD(nn.Linear(2, 1).parameters())},
            "expected a `torch.nn.Module` as model, got str 'resnet'",
        ),
        ({"training_step": 3}, "expected a function or a method as step, got int 3"),
        ({"optimizer": "adam"}, "expected an optimizer of torch's protocol, got str 'adam'"),
        ({"optimizer": []}, "expected at least one optimizer, got none"),
        (
            {"optimizer": iter([SGD([nn.Parameter(torch.ones(1))], lr=0.1)])},
            "expected an optimizer, or several in a list or a dict, got list_iterator object",
        ),
        (
            {"optimizer": SGD([torch.ones(1)])},
            "expected an optimizer with a parameter that requires a gradient, got none",
        ),
        (
            {"schema": EvaluationOutput},
            "expected a subclass of `TrainingOutput` for the stage 'training', got `EvaluationOutput`",
        ),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(options: Any, message: str) -> None:
    assert refused(**options).message == message


def test_wrong_options_are_said_all_at_once() -> None:
    error = refused(max_epochs=0, precision="fp8", validation_step=step, loggers=[3], tbptt=(5, 1), scheduler=4)
    assert str(error) == (
        "expected right options, got 5 wrong ones\n"
        "  1. expected a positive int as `max_epochs`, got int 0\n"
        "  2. expected loggers, got int 3 among `loggers`\n"
        "  3. expected `validation_batches` beside `validation_step`, got None\n"
        "  4. expected 'fp32', 'bf16-mixed', 'fp16-mixed' as `precision`, got str 'fp8'\n"
        "  5. expected a learning-rate scheduler, got int 4  [option]\n"
        "  help: one for each\n"
        "    1. count from 1\n"
        "    2. pass a list of objects with `log_metrics(dict, step)`, such as `JSONLLogger(path)`\n"
        "    3. give both of them, or none\n"
        "    4. write one of them\n"
        "    5. pass an instance, for example `StepLR(optimizer, step_size=10)`"
    )


def test_fp16_with_an_optimizer_that_demands_a_closure_is_refused_by_name() -> None:
    model = nn.Linear(2, 1)
    error = refused(model=model, optimizer=LBFGS(model.parameters()), precision="fp16-mixed")
    assert error.message == (
        'expected an optimizer that steps without a closure under "fp16-mixed", got `LBFGS`, whose `step` demands one'
    )


@pytest.mark.parametrize("option", [{"gradient_accumulation_steps": 2}, {"max_grad_norm": 1.0}])
def test_what_a_manual_step_does_itself_is_refused(option: Any) -> None:
    model = nn.Linear(2, 1)
    error = refused(model=model, optimizer=[SGD(model.parameters())], **option)
    assert error.message.startswith(f"expected no `{next(iter(option))}` with several optimizers, got ")


def test_a_scheduler_by_value_needs_a_name_and_whole_epochs() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    error = refused(model=model, optimizer=optimizer, scheduler=ReduceLROnPlateau(optimizer), scheduler_interval="step")
    assert error.message.splitlines()[1:] == [
        "  1. expected `scheduler_monitor` for `ReduceLROnPlateau`, got None",
        "  2. expected 'epoch' as `scheduler_interval` for `ReduceLROnPlateau`, got 'step'",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": ""}, "expected the name of a value as `monitor`, got str ''"),
        ({"monitor": "a", "mode": "lower"}, "expected 'min' or 'max' as `mode`, got str 'lower'"),
        ({"monitor": "a", "patience": 0}, "expected a positive int as `patience`, got int 0"),
        ({"monitor": "a", "min_delta": -1.0}, "expected a finite number of at least 0 as `min_delta`, got float -1.0"),
    ],
)
def test_early_stopping_refuses_what_is_wrong_where_it_is_written(arguments: Any, message: str) -> None:
    with pytest.raises(LoopError, match=r"^expected") as caught:
        EarlyStopping(**arguments)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every_steps": 0}, "expected a positive int as `every_steps`, got int 0"),
        ({"monitor": 3}, "expected the name of a value as `monitor`, got int 3"),
        ({"monitor": "a", "mode": "best"}, "expected 'min' or 'max' as `mode`, got str 'best'"),
    ],
)
def test_a_checkpoint_refuses_what_is_wrong_where_it_is_written(arguments: Any, message: str) -> None:
    with pytest.raises(LoopError, match=r"^expected") as caught:
        Checkpoint("runs", **arguments)
    assert caught.value.message == message


def test_a_list_of_schedulers_is_taken() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    result = fit(
        model, step, [torch.ones(2, 2)], optimizer=optimizer, max_epochs=1, progress_bar=False,
        scheduler=[StepLR(optimizer, 1)],
    )  # fmt: skip
    assert result.history[0]["lr"] == 0.1
