"""The rules of `loss`: what is one, what it becomes in each stage, and how each other thing is named."""

import warnings
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from strictstep.schema import SkippedStep, StepOutputError, TrainingOutput, coerce

STAGES: tuple[Any, ...] = ("training", "manual", "validation", "test")
FLOATING = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGRAL = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint64]


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


def loss_of(returned: object, stage: Any = "training") -> Tensor:
    """The loss of the checked output, which is a tensor."""
    loss = coerce(returned, stage=stage).loss
    assert isinstance(loss, Tensor)
    return loss


def problem_of(loss: object, stage: Any = "training") -> tuple[str, str, str]:
    """Code, message and help of the only problem, which is at `loss`."""
    with pytest.raises(StepOutputError, match=r"loss_") as caught:
        coerce({"loss": loss}, stage=stage)
    (problem,) = caught.value.problems
    assert problem.path == "loss"
    return problem.code, problem.message, problem.help


class Marked(Tensor):
    """A subclass that does what a tensor does."""


def test_the_loss_is_kept_as_it_is() -> None:
    loss = a_loss()
    assert coerce(loss).loss is loss
    assert coerce({"loss": loss, "log": {"a": 1}}).loss is loss
    assert TrainingOutput(loss=loss).loss is loss


def test_a_loss_of_a_subclass_is_kept_as_it_is() -> None:
    loss = a_loss().as_subclass(Marked)
    assert coerce(loss).loss is loss


def test_a_loss_on_meta_is_kept_as_it_is() -> None:
    loss = torch.ones(3, device="meta", requires_grad=True).sum()
    assert coerce(loss).loss is loss


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_every_real_floating_dtype_is_a_loss(dtype: torch.dtype) -> None:
    loss = a_loss().to(dtype)
    assert coerce(loss).loss is loss
    for stage in STAGES[1:]:
        assert loss_of(loss, stage).dtype is dtype


def test_float8_of_exponents_only_is_a_loss_where_torch_has_it() -> None:
    dtype = getattr(torch, "float8_e8m0fnu", torch.float32)
    assert loss_of(torch.ones(()).to(dtype), "test").dtype is dtype


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("mode", ["enabled", "no_grad", "inference_mode"])
def test_one_element_in_another_shape_is_viewed_with_its_graph(shape: tuple[int, ...], mode: str) -> None:
    weight = torch.ones(1, requires_grad=True)
    loss = (weight * 3).reshape(shape)
    modes: dict[str, Any] = {
        "enabled": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
    }
    with modes[mode]():
        viewed = loss_of(loss)
    assert viewed.shape == ()
    assert viewed.data_ptr() == loss.data_ptr()
    viewed.backward()
    assert weight.grad == torch.tensor([3.0])
    assert loss.shape == shape


@pytest.mark.parametrize("stage", STAGES[1:])
def test_outside_training_the_loss_is_detached_and_shares_its_storage(stage: Any) -> None:
    for loss in (a_loss(), a_loss().view(1), nn.Parameter(torch.ones(()))):
        kept = loss_of(loss, stage)
        assert kept.shape == ()
        assert not kept.requires_grad
        assert kept.data_ptr() == loss.data_ptr()
    plain = torch.ones(())
    assert coerce(plain, stage=stage).loss is plain


def test_an_inference_tensor_is_a_loss_of_evaluation() -> None:
    with torch.inference_mode():
        loss = torch.ones(1)
        assert loss_of(loss, "test").shape == ()
    assert loss_of(loss, "test").shape == ()


@pytest.mark.parametrize("dtype", INTEGRAL, ids=str)
def test_an_integer_loss_is_for_evaluation_only(dtype: torch.dtype) -> None:
    loss = torch.ones((), dtype=dtype)
    for stage in STAGES[:2]:
        code, message, help = problem_of(loss, stage)
        assert code == "loss_not_floating"
        name = str(dtype).removeprefix("torch.")
        assert message == f"expected a real floating dtype, got {name}[] tensor on cpu"
        assert help == "keep the loss floating: `.long()`, `.int()`, `.argmax()` and comparisons cut the graph"
    for stage in STAGES[2:]:
        assert coerce(loss, stage=stage).loss is loss


@pytest.mark.parametrize("stage", STAGES)
def test_a_complex_loss_is_refused(stage: Any) -> None:
    code, message, help = problem_of(a_loss().to(torch.complex64), stage)
    kind = "real floating" if stage in ("training", "manual") else "real"
    assert (code, message) == ("loss_not_floating", f"expected a {kind} dtype, got complex64[] tensor on cpu")
    assert help == "take a real value of it, for example `loss.abs()` or `loss.real`"


def quantised() -> Tensor:
    """A quantised tensor; torch warns of them, which is no matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(()), 0.1, 0, torch.quint8)


@pytest.mark.parametrize("stage", STAGES)
def test_a_quantised_loss_is_refused(stage: Any) -> None:
    assert problem_of(quantised(), stage)[0] == "loss_not_floating"


NOT_STRIDED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "sparse": (lambda: a_loss().view(1).to_sparse(), "sparse_coo float32[1] tensor on cpu"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "NestedTensor nested float32 tensor on cpu",
    ),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", NOT_STRIDED)
def test_a_loss_that_is_not_dense_is_refused(name: str, stage: Any) -> None:
    make, got = NOT_STRIDED[name]
    expected = ("loss_not_strided", f"expected a dense tensor, got {got}")
    assert problem_of(make(), stage)[:2] == expected
    assert problem_of(make(), stage)[2] == "reduce it to a dense scalar, as `.sum()` does"


def made_in_inference_mode() -> Tensor:
    with torch.inference_mode():
        return torch.ones(())


# how the loss lost its graph: (the loss, code, end of the message, a part of the help)
WITHOUT_GRAPH: dict[str, tuple[Callable[[], Tensor], str, str, str]] = {
    "detached": (lambda: a_loss().detach(), "loss_no_grad", "without a graph", "without `.detach()`"),
    "constant": (lambda: torch.tensor(0.0), "loss_no_grad", "without a graph", "`torch.tensor(...)`"),
    "inference": (made_in_inference_mode, "loss_no_grad", "made in inference mode", "outside `torch.inference_mode()`"),
    "leaf": (lambda: torch.ones((), requires_grad=True), "loss_leaf", "that no operation made", "`output.sum() * 0`"),
    "parameter": (lambda: nn.Parameter(torch.ones(())), "loss_leaf", "that no operation made", "leads to no parameter"),
    "leaf [1]": (lambda: torch.ones(1, requires_grad=True), "loss_leaf", "that no operation made", "a leaf"),
}


@pytest.mark.parametrize("name", WITHOUT_GRAPH)
def test_a_loss_without_a_graph_is_told_apart(name: str) -> None:
    make, code, end, help = WITHOUT_GRAPH[name]
    found = problem_of(make())
    assert found[0] == code
    assert found[1].endswith(end)
    assert help in found[2]


def test_grad_mode_off_is_named() -> None:
    with torch.no_grad():
        code, message, help = problem_of(a_loss())
    assert code == "loss_no_grad"
    assert message == "expected a loss attached to the graph, got float32[] tensor on cpu while grad mode is off"
    assert help == "run the training step outside `torch.no_grad()`"


@pytest.mark.parametrize(
    ("loss", "codes"),
    [
        (torch.ones(8, 1) > 0, ["loss_not_floating", "loss_not_scalar"]),
        (torch.ones(8, 1, dtype=torch.complex64), ["loss_not_floating", "loss_not_scalar", "loss_no_grad"]),
        (torch.ones((), dtype=torch.complex64), ["loss_not_floating", "loss_no_grad"]),
    ],
    ids=["bool", "complex", "complex scalar"],
)
def test_a_wrong_dtype_hides_no_other_fault(loss: Tensor, codes: list[str]) -> None:
    with pytest.raises(StepOutputError, match="loss_not_floating") as caught:
        coerce({"loss": loss})
    assert [problem.code for problem in caught.value.problems] == codes


@pytest.mark.parametrize(
    ("shape", "graph", "codes"),
    [
        ((8,), True, ["loss_not_scalar"]),
        ((8, 1), True, ["loss_not_scalar"]),
        ((8,), False, ["loss_not_scalar", "loss_no_grad"]),
        ((0,), True, ["loss_not_scalar"]),
    ],
    ids=str,
)
def test_all_faults_of_a_loss_are_named_at_once(shape: tuple[int, ...], graph: bool, codes: list[str]) -> None:
    with pytest.raises(StepOutputError, match="loss_not_scalar") as caught:
        coerce(torch.ones(shape, requires_grad=graph) * 2)
    assert [problem.code for problem in caught.value.problems] == codes
    assert ("no elements" in caught.value.problems[0].help) == (0 in shape)


# what is no tensor: (value, how the message names it, a part of its own help)
NO_TENSOR: dict[str, tuple[Any, str, str]] = {
    "float": (0.27, "float 0.27", "without `.item()`"),
    "int": (3, "int 3", "without `.item()`"),
    "int 0": (0, "int 0", "the sum of no terms is the int 0"),
    "bool": (False, "bool False", "without `.item()`"),
    "numpy": (np.float32(1), "numpy.float32", "without `.numpy()`"),
    "array": (np.ones(()), "float64[] array", "without `.numpy()`"),
    "str": ("0.3", "str '0.3'", "strings are never parsed"),
    "dict": ({"a": 1}, "dict of length 1", "`sum(parts.values())`"),
    "list": ([1.0], "list[float]", "`torch.stack(parts).sum()`"),
    "tuple": ((1.0, 2.0), "tuple[float, float]", "`torch.stack(parts).sum()`"),
    "function": (a_loss, "function 'a_loss'", "call it"),
    "object": (object(), "object object", "return the loss tensor that the model's output leads to"),
}


@pytest.mark.parametrize("name", NO_TENSOR)
def test_a_loss_that_is_no_tensor_is_named(name: str) -> None:
    value, got, help = NO_TENSOR[name]
    expected = {"training": "a differentiable scalar", "manual": "a scalar tensor"}
    for stage, words in expected.items():
        found = problem_of(value, stage)
        assert found[:2] == ("loss_not_tensor", f"expected {words}, got {got}")
        assert help in found[2]


Output = namedtuple("Output", "loss logits")

# what holds more than a sum of parts: (value, the help)
NO_PARTS: dict[str, tuple[Any, str]] = {
    "dict": (
        {"loss": a_loss(), "log": {}},
        'it has a loss of its own: return that, for example `output["loss"]`',
    ),
    "namedtuple": (
        Output(a_loss(), torch.ones(8, 2)),
        "it has a loss of its own: return that, for example `output.loss`",
    ),
    "object": (
        SimpleNamespace(loss=a_loss()),
        "it has a loss of its own: return that, for example `output.loss`",
    ),
    "tuple with logits": (
        (a_loss(), torch.ones(8, 2)),
        "return the one tensor in it that is the loss, for example `output[0]`, and the rest in `metrics`",
    ),
    "dict with logits": (
        {"objective": a_loss(), "logits": torch.ones(8, 2)},
        "return the one tensor in it that is the loss, and the rest in `metrics`",
    ),
}


@pytest.mark.parametrize("name", NO_PARTS)
def test_a_loss_beside_other_things_is_not_told_to_be_summed_with_them(name: str) -> None:
    value, help = NO_PARTS[name]
    code, _, found = problem_of(value)
    assert (code, found) == ("loss_not_tensor", help)


def test_a_coroutine_as_loss_is_told_to_be_awaited() -> None:
    async def compute_loss() -> Tensor:
        return a_loss()

    coroutine = compute_loss()
    code, _, help = problem_of(coroutine)
    coroutine.close()
    assert code == "loss_not_tensor"
    assert help == "`await` it, or make what gives it a plain function: replace `async def` by `def`"


@pytest.mark.parametrize("value", [0.27, 3, 0, True, np.float32(0.5), np.array(2)], ids=repr)
def test_an_evaluation_loss_may_be_a_number(value: Any) -> None:
    loss = coerce({"loss": value}, stage="validation").loss
    assert loss == value
    assert type(loss) in (float, int, bool)


@pytest.mark.parametrize("value", ["0.3", [0.3], 1j, None.__class__], ids=repr)
def test_an_evaluation_loss_is_nothing_else(value: Any) -> None:
    assert problem_of(value, "test")[0] == "loss_not_tensor"


def test_a_step_works_inside_torch_func_grad() -> None:
    def step(weight: Tensor) -> Tensor:
        return loss_of({"loss": (weight * weight).sum()})

    assert torch.equal(torch.func.grad(step)(torch.tensor([1.0, 2.0])), torch.tensor([2.0, 4.0]))


def test_an_evaluation_step_works_inside_vmap() -> None:
    def step(row: Tensor) -> Tensor:
        return loss_of({"loss": row.sum().view(1)}, "test")

    assert torch.equal(torch.vmap(step)(torch.ones(3, 2)), torch.full((3,), 2.0))


def test_a_loss_that_raises_when_it_is_looked_at_is_unreadable() -> None:
    class Raising(Tensor):
        @property
        def layout(self) -> Any:  # type: ignore[override]
            raise ConnectionError("no")

    with pytest.raises(StepOutputError, match="unreadable") as caught:
        coerce(a_loss().as_subclass(Raising))
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("unreadable", "loss")
    assert problem.message.endswith("that raised ConnectionError")


def test_a_skipped_step_has_no_loss() -> None:
    with pytest.raises(StepOutputError, match="skip_with_loss") as caught:
        SkippedStep(reason="no boxes", loss=a_loss())  # type: ignore[arg-type]
    assert caught.value.problems[0].message == "expected no `loss` in a skipped step, got float32[] tensor on cpu"
