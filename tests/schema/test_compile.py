"""A checked step inside and around torch.compile, torch.func, checkpointing and autocast: the numbers of eager mode."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from strictstep.schema import StepOutputError, TrainingOutput, coerce, validate_step

pytestmark = [
    # Warnings of torch's own at any graph break; it hides them when they are shown, which an error is not.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning"),
]

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def model_and_batch() -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model, torch.randn(8, 4, generator=generator)


def plain_step(model: nn.Module, batch: Tensor) -> dict[str, Any]:
    output = model(batch)
    loss = output.pow(2).mean()
    return {"loss": loss, "log": {"largest": output.abs().max(), "images": 8}, "metrics": {"output": output}}


def tensor_step(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).pow(2).mean()  # type: ignore[no-any-return]


def run(step: Callable[..., Any]) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients of one step from fixed parameters."""
    model, batch = model_and_batch()
    output = step(model, batch)
    loss = (
        output if isinstance(output, Tensor) else output.loss if isinstance(output, TrainingOutput) else output["loss"]
    )
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("step", [plain_step, tensor_step])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decorated_step_compiles_to_the_same_numbers(backend: str, step: Any) -> None:
    torch.testing.assert_close(run(torch.compile(validate_step(step), backend=backend)), run(step))


@pytest.mark.parametrize("step", [plain_step, tensor_step])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_step_decorated_gives_the_same_numbers(backend: str, step: Any) -> None:
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    torch.testing.assert_close(run(validate_step(compiled)), run(step))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decorated_step_that_is_compiled_runs_again_and_again(backend: str) -> None:
    compiled: Any = torch.compile(validate_step(plain_step), backend=backend)
    expected = run(plain_step)
    for _ in range(3):
        torch.testing.assert_close(run(compiled), expected)


def test_the_original_return_comes_through_a_compiled_step() -> None:
    compiled: Any = torch.compile(validate_step(returns="original")(plain_step), backend="eager")
    output = compiled(*model_and_batch())
    assert type(output) is dict
    torch.testing.assert_close(run(compiled), run(plain_step))


def test_a_compiled_step_gives_a_checked_output() -> None:
    output: Any = torch.compile(validate_step(plain_step), backend="eager")(*model_and_batch())
    assert type(output) is TrainingOutput
    assert output.log["images"] == 8
    assert not output.log["largest"].requires_grad  # pyright: ignore[reportAttributeAccessIssue]
    assert output.loss.requires_grad


@pytest.mark.parametrize("outside", [True, False], ids=["compiled", "decorated"])
def test_a_wrong_return_of_a_compiled_step_is_reported(outside: bool) -> None:
    def unreduced(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).pow(2)  # type: ignore[no-any-return]

    step: Any = (
        torch.compile(validate_step(unreduced), backend="eager")
        if outside
        else validate_step(torch.compile(unreduced, backend="eager"))
    )
    with pytest.raises(StepOutputError, match=r"got float32\[8, 1\] tensor on cpu  \[loss_not_scalar\]"):
        step(*model_and_batch())


def test_the_check_is_no_part_of_what_is_compiled() -> None:
    graphs: list[int] = []

    def counting(module: Any, _: Any) -> Any:
        graphs.append(len(module.graph.nodes))
        return module.forward

    run(torch.compile(validate_step(plain_step), backend=counting))
    checked, graphs = graphs, []
    run(torch.compile(plain_step, backend=counting))
    assert checked == graphs


def test_a_compiled_module_may_be_decorated() -> None:
    model, batch = model_and_batch()

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, batch: Tensor) -> Tensor:
            return self.inner(batch).pow(2).mean()  # type: ignore[no-any-return]

    step: Any = validate_step(torch.compile(WithLoss(), backend="eager"))
    torch.testing.assert_close(step(batch).loss, tensor_step(model, batch))


def test_a_whole_loop_around_a_decorated_step_compiles() -> None:
    step: Any = validate_step(plain_step)

    def whole(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = step(model, batch).loss
        return loss * 2

    compiled = torch.compile(whole, backend="eager")
    torch.testing.assert_close(compiled(*model_and_batch()), run(plain_step)[0] * 2)


def test_coerce_may_be_called_inside_what_is_compiled() -> None:
    def step(model: nn.Module, batch: Tensor) -> Any:
        return torch.compiler.disable(coerce)(plain_step(model, batch))  # pyright: ignore[reportArgumentType]

    torch.testing.assert_close(run(torch.compile(step, backend="eager")), run(plain_step))


# -- torch.func


def weighted(weight: Tensor, batch: Tensor) -> Tensor:
    return (weight * batch).pow(2).mean()


def test_func_grad_goes_through_a_checked_step() -> None:
    step: Any = validate_step(weighted)
    weight, batch = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    checked = torch.func.grad(lambda weight: step(weight, batch).loss)(weight)
    torch.testing.assert_close(checked, torch.func.grad(weighted)(weight, batch))


def test_func_grad_and_value_with_the_original_return() -> None:
    step: Any = validate_step(returns="original")(weighted)
    weight, batch = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    torch.testing.assert_close(
        torch.func.grad_and_value(step)(weight, batch), torch.func.grad_and_value(weighted)(weight, batch)
    )


def test_vmap_goes_through_a_checked_step() -> None:
    step: Any = validate_step(stage="validation")(weighted)
    weight, batches = torch.tensor([1.0, 2.0]), torch.arange(6.0).view(3, 2)
    losses = torch.vmap(lambda batch: step(weight, batch).loss)(batches)
    torch.testing.assert_close(losses, torch.stack([weighted(weight, batch) for batch in batches]))


def test_a_graph_outside_of_vmap_is_not_seen_from_inside() -> None:
    step: Any = validate_step(weighted)
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(StepOutputError, match=r"\[loss_no_grad\]"):  # torch shows no `grad_fn` there
        torch.vmap(lambda batch: step(weight, batch).loss)(torch.arange(6.0).view(3, 2))


def test_gradients_per_sample_go_through_a_checked_step() -> None:
    step: Any = validate_step(weighted)
    weight, batches = torch.tensor([1.0, 2.0]), torch.arange(6.0).view(3, 2)
    gradients = torch.vmap(torch.func.grad(lambda weight, batch: step(weight, batch).loss), (None, 0))(weight, batches)
    torch.testing.assert_close(gradients, torch.stack([torch.func.grad(weighted)(weight, batch) for batch in batches]))


def test_jacrev_goes_through_a_checked_step() -> None:
    step: Any = validate_step(weighted)
    weight, batch = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    checked = torch.func.jacrev(lambda weight: step(weight, batch).loss)(weight)
    torch.testing.assert_close(checked, torch.func.jacrev(weighted)(weight, batch))


@pytest.mark.parametrize("transform", [torch.func.jacfwd, torch.func.hessian])
def test_forward_jacobians_go_through_the_original_return(transform: Any) -> None:
    step = validate_step(stage="validation", returns="original")(weighted)
    weight, batch = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    torch.testing.assert_close(transform(step)(weight, batch), transform(weighted)(weight, batch))


# -- checkpointing and autocast


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_step_with_checkpoints_gives_the_same_numbers(use_reentrant: bool) -> None:
    def step(model: nn.Module, batch: Tensor) -> Tensor:
        hidden = checkpoint(model, batch.requires_grad_(), use_reentrant=use_reentrant)
        return hidden.pow(2).mean()  # type: ignore[no-any-return]

    torch.testing.assert_close(run(validate_step(step)), run(step))


def test_a_checked_step_may_itself_be_checkpointed() -> None:
    def whole(model: nn.Module, batch: Tensor) -> Any:
        return checkpoint(lambda batch: validate_step(tensor_step)(model, batch).loss, batch, use_reentrant=False)

    torch.testing.assert_close(run(whole), run(tensor_step))


def test_a_step_under_autocast_keeps_its_dtype_and_its_graph() -> None:
    def step(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch).mean()  # type: ignore[no-any-return]

    output: Any = validate_step(step)(*model_and_batch())
    assert output.loss.dtype is torch.bfloat16
    torch.testing.assert_close(run(validate_step(step)), run(step))


# -- nothing of the compiler is imported


def _modules_after(lines: str) -> str:
    program = textwrap.dedent(lines) + "\nimport sys; print('torch._dynamo' in sys.modules)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_decorating_and_running_a_step_imports_no_compiler() -> None:
    assert (
        _modules_after(
            """
        import torch
        from strictstep.schema import StepOutputError, validate_step

        @validate_step
        def step(loss):
            return {"loss": loss, "log": {"a": 1}, "hiddens": [loss]}

        step(torch.ones(2, requires_grad=True).sum())
        try:
            step(torch.ones(2))
        except StepOutputError as error:
            str(error)
        """
        )
        == "False"
    )


def test_compiling_a_decorated_step_warns_of_nothing() -> None:
    program = """
        import torch
        from strictstep.schema import validate_step

        step = torch.compile(validate_step(lambda weight: (weight * 2).sum()), backend="aot_eager")
        step(torch.ones(3, requires_grad=True)).loss.backward()
        step = validate_step(torch.compile(lambda weight: (weight * 2).sum(), backend="eager"))
        step(torch.ones(3, requires_grad=True))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_the_check_for_the_compiler_notices_it() -> None:
    assert _modules_after("import torch; torch.compiler.disable(lambda: None)") == "True"
