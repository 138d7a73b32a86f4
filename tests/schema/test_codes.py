"""Every code that `coerce` and the models give, each with a whole problem as a report shows it."""

import enum
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from pydantic import field_validator
from torch import Tensor, nn
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    Scalar,
    SkippedStep,
    StepOutputError,
    TrainingOutput,
    coerce,
)
from strictstep.schema.errors import ErrorCode

OF_THE_LOOP = {"loss_non_finite"}  # coerce reads no value


class Log(TypedDict):
    acc: Scalar


class Numbered(TypedDict):
    n: int


class Own(EvaluationOutput):
    """A check of a team's own."""

    @field_validator("metrics")
    @classmethod
    def _check(cls, metrics: Any) -> Any:
        raise ValueError("the score must be at least 0")


class Unreadable(dict[str, Any]):
    """A mapping that cannot be read."""

    def items(self) -> Any:
        raise ConnectionError("no")


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


def chain(levels: int) -> Any:
    """Nothing, inside so many lists."""
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


def trained(returned: Any, **options: Any) -> Any:
    return coerce(returned, **options)


def evaluated(returned: Any, **options: Any) -> Any:
    return coerce(returned, stage="test", **options)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "loss_missing": (
        lambda: trained({"a": 1}),
        "  loss: expected the key `loss`, got the key `a`  [loss_missing]\n"
        "    help: return the loss tensor under the key `loss`, or `SkippedStep(reason=...)` to skip the batch",
    ),
    "loss_none": (
        lambda: trained({"loss": None}),
        "  loss: expected a differentiable scalar, got None  [loss_none]\n"
        "    help: to skip a batch on purpose, return `SkippedStep(reason=...)`",
    ),
    "loss_not_tensor": (
        lambda: trained({"loss": 0.27}),
        "  loss: expected a differentiable scalar, got float 0.27  [loss_not_tensor]\n"
        "    help: return the tensor itself, without `.item()`",
    ),
    "loss_not_scalar": (
        lambda: trained(torch.ones(8, requires_grad=True) * 2),
        "  loss: expected a differentiable scalar (shape `[]`), got float32[8] tensor on cpu  [loss_not_scalar]\n"
        "    help: reduce it, for example `loss.mean()` (DataParallel returns one loss per device)",
    ),
    "loss_not_floating": (
        lambda: trained(torch.tensor(1)),
        "  loss: expected a real floating dtype, got int64[] tensor on cpu  [loss_not_floating]\n"
        "    help: keep the loss floating: `.long()`, `.int()`, `.argmax()` and comparisons cut the graph",
    ),
    "loss_not_strided": (
        lambda: trained(torch.ones(1).to_sparse()),
        "  loss: expected a dense tensor, got sparse_coo float32[1] tensor on cpu  [loss_not_strided]\n"
        "    help: reduce it to a dense scalar, as `.sum()` does",
    ),
    "loss_no_grad": (
        lambda: trained(torch.ones(())),
        "  loss: expected a loss attached to the graph, got float32[] tensor on cpu without a graph  [loss_no_grad]\n"
        "    help: compute it without `.detach()`, `no_grad` or `torch.tensor(...)`, "
        "from parameters that require a gradient",
    ),
    "loss_leaf": (
        lambda: trained(torch.ones((), requires_grad=True)),
        "  loss: expected a loss made by an operation on the model's output, "
        "got float32[] tensor on cpu that no operation made  [loss_leaf]\n"
        "    help: a leaf leads to no parameter: compute the loss from the model's output "
        "(for zero: `output.sum() * 0`)",
    ),
    "scalar_wrong_type": (
        lambda: evaluated({"log": {"a": "x"}}),
        "  log.a: expected a scalar, got str 'x'  [scalar_wrong_type]\n"
        "    help: strings are never parsed: log numbers, and return text in `metrics`",
    ),
    "scalar_not_single": (
        lambda: evaluated({"log": {"top 1": torch.ones(8)}}),
        "  log['top 1']: expected a scalar, got float32[8] tensor on cpu  [scalar_not_single]\n"
        "    help: reduce it first, for example `x.mean()`, or return it in `metrics`",
    ),
    "scalar_complex": (
        lambda: evaluated({"progress_bar": {"a": torch.ones((), dtype=torch.complex64)}}),
        "  progress_bar.a: expected a real scalar, got complex64[] tensor on cpu  [scalar_complex]\n"
        "    help: log `x.real`, `x.imag` or `x.abs()`",
    ),
    "scalar_not_strided": (
        lambda: evaluated({"log": {"a": torch.ones(1).to_sparse()}}),
        "  log.a: expected a dense scalar, got sparse_coo float32[1] tensor on cpu  [scalar_not_strided]\n"
        "    help: make it dense first, for example `x.to_dense()`",
    ),
    "field_not_mapping": (
        lambda: evaluated({"log": ["a"]}),
        "  log: expected a mapping of names to values, got list[str]  [field_not_mapping]\n"
        "    help: return a dict of names",
    ),
    "key_not_string": (
        lambda: trained({"loss": a_loss(), 3: 1}),
        "  expected a name (str) as key, got int 3  [key_not_string]\n"
        "    help: use text for keys, for example `str(key)`",
    ),
    "key_unknown": (
        lambda: evaluated({"logs": {}}, strict=True),
        "  logs: expected one of the five fields, got `logs`  [key_unknown]\n    help: rename it to `log`",
    ),
    "key_missing": (
        lambda: trained({"loss": a_loss(), "log": {}}, schema=TrainingOutput[Log]),
        "  log.acc: expected the name `acc`, got no names  [key_missing]\n"
        "    help: the schema requires it: add `acc`, or make it `NotRequired`",
    ),
    "key_twice": (
        lambda: evaluated({"a": 1, "metrics": {"a": 2}}),
        "  metrics.a: expected each name once, got `a` at the top level and in `metrics`  [key_twice]\n"
        "    help: rename one of them, or leave it out",
    ),
    "progress_bar_unknown_name": (
        lambda: evaluated({"log": {"acc": 1}, "progress_bar": ["ac"]}),
        "  progress_bar[0]: expected the name of a `log` value, got str 'ac'; `log` has `acc`  "
        "[progress_bar_unknown_name]\n    help: write `acc`",
    ),
    "hiddens_not_tensor": (
        lambda: evaluated({"hiddens": [None, "x"]}),
        "  hiddens[1]: expected a tensor, None, or a list, tuple or dict of them, got str 'x'  [hiddens_not_tensor]\n"
        "    help: keep tensors only; wrap none of them in an object, and return anything else in `metrics`",
    ),
    "too_deep": (
        lambda: evaluated({"hiddens": chain(65)}),
        "  hiddens[0][0]: expected at most 64 levels of containers, none inside itself, "
        "got list[NoneType]  [too_deep]\n"
        "    help: return a flatter structure",
    ),
    "annotation_mismatch": (
        lambda: evaluated({"metrics": {"n": "3"}}, schema=EvaluationOutput[Any, Numbered]),
        "  metrics.n: expected a valid integer, got str '3'  [annotation_mismatch]\n"
        "    help: return what the schema annotates; dimensions of one name must agree within one output",
    ),
    "own_check_failed": (
        lambda: evaluated({"metrics": {}}, schema=Own),
        "  metrics: the score must be at least 0  [own_check_failed]\n"
        "    help: the check is the schema's own: see its validators",
    ),
    "skip_with_loss": (
        lambda: SkippedStep(reason="no boxes", loss=a_loss()),  # type: ignore[arg-type]
        "  loss: expected no `loss` in a skipped step, got float32[] tensor on cpu  [skip_with_loss]\n"
        "    help: a step with a loss is not skipped: return `TrainingOutput(loss=...)`, or leave the loss out",
    ),
    "reason_not_string": (
        lambda: SkippedStep(reason=3),  # type: ignore[arg-type]
        "  reason: expected a `reason` (str), got int 3  [reason_not_string]\n"
        "    help: say in words why the batch is skipped",
    ),
    "wrong_stage": (
        lambda: trained(EvaluationOutput()),
        "  expected an output of the stage 'training', got `EvaluationOutput`  [wrong_stage]\n"
        "    help: return `TrainingOutput`, or check the step with the stage that it is for",
    ),
    "wrong_return_type": (
        lambda: trained("0.3"),
        "  expected a tensor, a mapping, an output model or None, got str '0.3'  [wrong_return_type]\n"
        "    help: text is never parsed: return the loss tensor, or a mapping with `loss`",
    ),
    "returned_none": (
        lambda: trained(None, on_none="error"),
        "  expected a tensor, a mapping or an output model, got None  [returned_none]\n"
        "    help: was a `return` forgotten? to skip a batch on purpose, return `SkippedStep(reason=...)`",
    ),
    "unreadable": (
        lambda: evaluated(Unreadable(a=1)),
        "  expected a return that can be read, got Unreadable of length 1 that raised ConnectionError  [unreadable]\n"
        "    help: return a plain dict of the five fields",
    ),
}


def test_every_code_has_a_case() -> None:
    assert set(CASES) == set(get_args(ErrorCode)) - OF_THE_LOOP


@pytest.mark.parametrize("code", CASES)
def test_a_problem_is_told_in_full(code: str) -> None:
    make, text = CASES[code]
    with pytest.raises(StepOutputError, match=code) as caught:
        make()
    (problem,) = caught.value.problems
    assert str(problem) == text
    assert problem.code == code


# `loss` is missing: (what came, the help)
NO_LOSS: list[tuple[dict[str, Any], str]] = [
    ({"Loss": 1}, "keys are matched exactly: rename `Loss` to `loss`"),
    ({"LOSS": 1}, "keys are matched exactly: rename `LOSS` to `loss`"),
    ({"loss ": 1}, "keys are matched exactly: rename `loss ` to `loss`"),
    ({"train_loss": 1}, "rename `train_loss` to `loss`"),
    ({"losses": 1}, "rename `losses` to `loss`"),
    ({"los": 1}, "rename `los` to `loss`"),
    ({"loss_cls": 1, "loss_box": 2, "acc": 3}, "sum `loss_cls`, `loss_box` into `loss`, and put the parts in `log`"),
    ({"objective": a_loss()}, "`objective` is the only scalar attached to the graph: return it as `loss`"),
    ({"log": {"obj": a_loss()}}, "`log.obj` is the only scalar attached to the graph: return it as `loss`"),
    (
        {"logits": torch.ones(2)},
        "a model gives no loss when it gets no labels: pass them, and return what it gives as `loss`",
    ),
]


# the names alone mislead: (what came, the help)
BY_VALUES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "total": (
        lambda: {"total_loss": a_loss(), "loss_cls": a_loss(), "loss_box": a_loss()},
        "rename `total_loss` to `loss`",
    ),
    "total alone": (lambda: {"loss_cls": a_loss(), "total": a_loss()}, "rename `total` to `loss`"),
    "count": (lambda: {"loss_cls": a_loss(), "total": 64}, "rename `loss_cls` to `loss`"),
    "weight and name": (
        lambda: {"loss_weight": 0.5, "loss_name": "mse", "objective": a_loss()},
        "`objective` is the only scalar attached to the graph: return it as `loss`",
    ),
    "loss function": (
        lambda: {"loss_fn": nn.MSELoss(), "objective": torch.ones(())},
        "return the loss tensor under the key `loss`, or `SkippedStep(reason=...)` to skip the batch",
    ),
    "metric": (
        lambda: {"lossless_psnr": 3.0, "obj": a_loss()},
        "`obj` is the only scalar attached to the graph: return it as `loss`",
    ),
    "none": (lambda: {"train_loss": a_loss(), "val_loss": None}, "rename `train_loss` to `loss`"),
    "detached": (lambda: {"loss_cls": torch.ones(()), "det_loss": a_loss()}, "rename `det_loss` to `loss`"),
    "dict of parts": (lambda: {"losses": {"cls": a_loss(), "box": a_loss()}}, "rename `losses` to `loss`"),
    "one twice": (lambda: dict.fromkeys(("loss_a", "loss_b"), a_loss()), "rename `loss_a` to `loss`"),
}


@pytest.mark.parametrize("name", BY_VALUES)
def test_a_missing_loss_is_looked_for_among_values_that_may_be_one(name: str) -> None:
    make, help = BY_VALUES[name]
    with pytest.raises(StepOutputError, match="loss_missing") as caught:
        coerce(make())
    assert caught.value.problems[0].help == help


# letters of other scripts: (the key, how it is shown, the help)
OTHER_SCRIPTS = [
    ("l\u043ess", r"l\u043ess", r"keys are matched exactly: retype `l\u043ess` in ASCII, as `loss`"),
    (
        "train_l\u043ess",
        r"train_l\u043ess",
        r"retype `train_l\u043ess` in ASCII, as `loss`",
    ),
    ("loss_\u03b2", "loss_\u03b2", "rename `loss_\u03b2` to `loss`"),
    ("loss_\u00e9tat", "loss_\u00e9tat", "rename `loss_\u00e9tat` to `loss`"),
    ("\u640d\u5931", "\u640d\u5931", "`\u640d\u5931` is the only scalar attached to the graph: return it as `loss`"),
    (
        "\u0440\u043e\u0441\u0442",
        "\u0440\u043e\u0441\u0442",
        "`\u0440\u043e\u0441\u0442` is the only scalar attached to the graph: return it as `loss`",
    ),
]


@pytest.mark.parametrize(("key", "shown", "help"), OTHER_SCRIPTS, ids=ascii)
def test_a_key_that_only_looks_like_ascii_is_shown_by_its_escapes(key: str, shown: str, help: str) -> None:
    with pytest.raises(StepOutputError, match="loss_missing") as caught:
        coerce({key: a_loss()})
    (problem,) = caught.value.problems
    assert (problem.message, problem.help) == (f"expected the key `loss`, got the key `{shown}`", help)


def test_a_name_in_the_bar_that_only_looks_like_ascii_is_shown_by_its_escapes() -> None:
    with pytest.raises(StepOutputError, match="progress_bar_unknown_name") as caught:
        coerce({"log": {"acc": 1}, "progress_bar": ["a\u0441c"]}, stage="test")
    (problem,) = caught.value.problems
    assert problem.message == r"expected the name of a `log` value, got str 'a\u0441c'; `log` has `acc`"
    assert problem.help == "write `acc`"


class Kind(enum.Enum):
    LOSS = "loss"


# a key that is no text: (the key, how it is named, the help)
NO_TEXT: list[tuple[Any, str, str]] = [
    (3, "int 3", "use text for keys, for example `str(key)`"),
    (Kind.LOSS, "Kind.LOSS", "use text for keys, for example `key.value`"),
    (b"loss", "bytes of length 4", "use text for keys, for example `key.decode()`"),
    (("a", "b"), "tuple[str, str]", 'use text for keys, for example `"/".join(key)`'),
    (object, "class 'object'", "use text for keys"),
]


@pytest.mark.parametrize(("key", "got", "help"), NO_TEXT, ids=repr)
def test_a_key_that_is_no_text_is_told_how_to_become_one(key: Any, got: str, help: str) -> None:
    with pytest.raises(StepOutputError, match="key_not_string") as caught:
        coerce({key: a_loss()})
    wrong, missing = caught.value.problems
    assert (wrong.message, wrong.help) == (f"expected a name (str) as key, got {got}", help)
    assert missing.message == "expected the key `loss`, got no names"


@pytest.mark.parametrize(("returned", "help"), NO_LOSS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_missing_loss_gets_the_most_certain_advice(returned: dict[str, Any], help: str) -> None:
    with pytest.raises(StepOutputError, match="loss_missing") as caught:
        coerce(returned)
    (problem,) = caught.value.problems
    keys = ", ".join(f"`{key}`" for key in returned)
    assert problem.message == f"expected the key `loss`, got the key{'s' if len(returned) > 1 else ''} {keys}"
    assert problem.help == help


def test_no_names_at_all_are_said_so() -> None:
    with pytest.raises(StepOutputError, match=r"expected the key `loss`, got no names  \[loss_missing\]"):
        coerce({})


def test_one_tensor_under_two_names_is_still_the_only_one() -> None:
    loss = a_loss()
    with pytest.raises(StepOutputError, match=r"`objective` is the only scalar attached to the graph"):
        coerce({"objective": loss, "log": {"objective": loss}})


def test_the_report_carries_stage_step_and_numbers() -> None:
    def my_step() -> None: ...

    with pytest.raises(StepOutputError, match="loss_not_tensor") as caught:
        coerce({"loss": 1.5}, step=my_step, epoch=2, batch_idx=7)
    error = caught.value
    assert (error.stage, error.step_name, error.epoch, error.batch_idx) == ("training", error.step_name, 2, 7)
    first = str(error).splitlines()[0]
    assert first.startswith("training step `")
    assert first.endswith("my_step` returned an invalid output at epoch 2, batch 7 (1 problem)")
