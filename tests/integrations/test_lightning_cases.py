"""What the tests of Lightning itself say a step may return, and what comes of it; here with the check on."""

import copy
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader

from strictstep.schema import SkippedStep, StepOutputError
from strictstep.schema.integrations.lightning import SkipRefusedError, checked

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*treespec, LeafSpec",
    "ignore:.*no `val_dataloader`",
    "ignore:.*none of the five fields",
    "ignore:.*`training_step` returned `?None",
)
Returned = Callable[["Net", Tensor, int], Any]


class Net(LightningModule):
    """A linear layer without bias, whose steps return what they are given to return; keeps what the hooks get."""

    def __init__(self, returned: Returned, optimizer: Callable[[Any], Any] = lambda weights: SGD(weights, lr=0.1)):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1, bias=False)
        self.returned = returned
        self.optimizer = optimizer
        self.outputs: list[Any] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return self.returned(self, batch, batch_idx)

    def validation_step(self, batch: Tensor, batch_idx: int) -> Any:
        return self.returned(self, batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(copy.deepcopy(outputs))

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.outputs.append(outputs)

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())


def ones(count: int = 4) -> DataLoader[Any]:
    """Batches of eight rows of ones."""
    rows: Any = torch.ones(8 * count, 4)
    return DataLoader(rows, batch_size=8)


def fit(module: Net, batches: Any = None, **options: Any) -> Net:
    """Train one epoch, checked."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    run = Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **options})
    run.fit(checked(module), batches or ones())
    return module


def of_25(net: Net, batch: Tensor, batch_idx: int) -> Tensor:
    """A loss of 25 that has a gradient."""
    loss: Tensor = net.layer(batch).sum() * 0 + 25
    return loss


def by_hand(net: Net) -> Net:
    """The same module in manual optimization."""
    net.automatic_optimization = False
    return net


def test_a_hook_may_copy_the_outputs() -> None:
    module = fit(Net(lambda *given: {"loss": of_25(*given), "log": {"loss": of_25(*given)}, "hiddens": [given[1]]}))
    assert module.outputs[-1]["loss"] == 25


def test_accumulation_divides_what_the_hooks_get_and_not_what_is_logged() -> None:
    module = fit(Net(lambda *given: {"loss": of_25(*given), "log": {"loss": of_25(*given)}}), accumulate_grad_batches=5)
    assert module.outputs[-1]["loss"] == 5  # Lightning's own doing
    assert module.outputs[-1]["log"]["loss"] == module.trainer.callback_metrics["loss"] == 25


@pytest.mark.parametrize("optimization", [lambda net: net, by_hand], ids=["automatic", "manual"])
def test_a_number_is_no_output_of_training(optimization: Callable[[Net], Net]) -> None:
    with pytest.raises(StepOutputError, match=r"got float 5.0  \[wrong_return_type\]"):
        fit(optimization(Net(lambda *_: 5.0)))


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_mapping_without_a_loss_lists_its_keys(kind: type) -> None:
    with pytest.raises(StepOutputError, match=r"expected the key `loss`, got the key `a`  \[loss_missing\]"):
        fit(Net(lambda *_: kind(a=5)))


def test_any_mapping_with_a_loss_trains_in_both_ways_of_optimization() -> None:
    assert fit(Net(lambda *given: UserDict(loss=of_25(*given)))).outputs[-1] == {"loss": 25}
    assert fit(by_hand(Net(lambda *given: UserDict(loss=of_25(*given))))).outputs[-1] == {"loss": 25}


def test_none_skips_in_one_process() -> None:
    module = Net(lambda *_: None)
    before = module.layer.weight.detach().clone()
    assert fit(module).outputs == [{}] * 4
    assert torch.equal(before, module.layer.weight)


def test_none_on_even_batches_trains_on_the_odd_ones() -> None:
    odd = fit(Net(lambda net, batch, batch_idx: net.layer(batch).sum() if batch_idx % 2 else None))
    assert [bool(outputs) for outputs in odd.outputs] == [False, True, False, True]
    torch.manual_seed(0)
    skipped = fit(Net(lambda net, batch, i: net.layer(batch).sum() if i % 2 else SkippedStep(reason="even")))
    torch.manual_seed(0)
    assert torch.equal(
        skipped.layer.weight, fit(Net(lambda net, batch, _: net.layer(batch).sum()), ones(2)).layer.weight
    )


@pytest.mark.filterwarnings("ignore:.*train_dataloader yielded None")
def test_batches_of_none_never_come_to_the_step() -> None:
    batches: Any = DataLoader([None] * 3, collate_fn=lambda rows: rows[0])  # type: ignore[arg-type]
    module = fit(Net(lambda *_: pytest.fail("the step was called")), batches)
    assert module.outputs == [None] * 3


def test_an_optimizer_step_that_does_nothing_is_lightnings_to_refuse() -> None:
    class Idle(Net):
        def optimizer_step(self, *_: Any, **__: Any) -> None:
            """Forget the closure."""

    with pytest.raises(MisconfigurationException, match="The closure hasn't been executed"):
        fit(Idle(of_25))


class DropsClosure(SGD):
    """An optimizer whose step drops the closure."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step without it."""
        super().step()


class WithoutGrad(Adam):
    """An optimizer that calls its closure with gradients off."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Call the closure, then step."""
        loss = closure()
        super().step()
        return loss


def test_an_optimizer_that_drops_the_closure_is_lightnings_to_refuse() -> None:
    with pytest.raises(MisconfigurationException, match="The closure hasn't been executed"):
        fit(Net(of_25, lambda weights: DropsClosure(weights, lr=0.1)))


def test_an_optimizer_that_steps_without_gradients_trains_as_its_base_does() -> None:
    weights = []
    for optimizer in (Adam, WithoutGrad):
        torch.manual_seed(0)
        weights.append(fit(Net(lambda net, batch, _: net.layer(batch).sum(), optimizer)).layer.weight)
    assert torch.equal(*weights)


def test_manual_outputs_reach_the_hooks_without_a_gradient() -> None:
    module = fit(by_hand(Net(lambda *given: {"loss": of_25(*given), "something": "giraffe"})))
    assert module.outputs[-1]["loss"] == 25
    assert not module.outputs[-1]["loss"].requires_grad
    assert module.outputs[-1]["something"] == "giraffe"


@pytest.mark.parametrize("returned", [None, {"loss": None, "seen": 8}, {"seen": 8}, {"loss": None, "hiddens": None}])
def test_manual_optimization_needs_no_loss(returned: Any) -> None:
    module = fit(by_hand(Net(lambda *_: returned)))
    assert module.outputs[-1].get("seen") == (returned or {}).get("seen")


def test_anything_beside_the_loss_holds_no_graph_at_the_end_of_the_batch() -> None:
    module = Net(lambda net, batch, _: {"loss": (z := net.layer(batch)).sum(), "random_things": [1, "a", z.sum()]})
    things = fit(module).outputs[-1]["random_things"]
    assert things[:2] == [1, "a"]
    assert things[2].grad_fn is None


def test_names_of_ones_own_reach_the_hooks() -> None:
    assert fit(Net(lambda *given: {"loss": of_25(*given), "foo": 123})).outputs[-1]["foo"] == 123


def test_evaluation_hands_any_mapping_to_the_hooks_and_refuses_a_list() -> None:
    module = checked(Net(lambda *_: {"something": "random"}))
    options: Any = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    Trainer(**options).validate(module, ones(1), verbose=False)
    assert module.outputs[-1]["something"] == "random"
    module.returned = lambda *_: ["1", 2, torch.tensor(2)]
    with pytest.raises(StepOutputError, match=r"got list\[str, int, Tensor\]  \[wrong_return_type\]"):
        Trainer(**options).validate(module, ones(1), verbose=False)


def lbfgs(weights: Any) -> Optimizer:
    """LBFGS that evaluates three times in each step."""
    return torch.optim.LBFGS(weights, max_iter=3, tolerance_grad=0, tolerance_change=0)


def test_lbfgs_zeroes_the_gradients_at_each_evaluation() -> None:
    calls = []

    class Counts(Net):
        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            """Count, then zero."""
            calls.append(batch_idx)
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    fit(Counts(lambda net, batch, _: net.layer(batch).exp().mean(), lbfgs), ones(2))
    assert calls == [0] * 3 + [1] * 3


def test_a_skip_under_lbfgs_is_refused() -> None:
    with pytest.raises(SkipRefusedError, match=r"batch 0 was skipped, and `LBFGS` demands a loss of every call"):
        fit(Net(lambda *_: SkippedStep(reason="no boxes"), lbfgs))


def test_hiddens_are_none_only_at_the_first_split_and_come_back_equal_without_a_gradient() -> None:
    class Recurrent(Net):
        lstm: Any
        given: Any

        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            """Start from what the last batch ended with."""
            given = None if batch_idx == 0 else self.outputs[-1]["hiddens"]
            self.given.append(given)
            sequence, hiddens = self.lstm(batch.unsqueeze(1), given)
            return {"loss": sequence.sum(), "hiddens": hiddens}

    module = Recurrent(of_25)
    module.lstm, module.given = torch.nn.LSTM(4, 2), []
    fit(module)
    assert [given is None for given in module.given] == [True, False, False, False]
    for given, outputs in zip(module.given[1:], module.outputs, strict=False):
        assert all(torch.equal(*pair) for pair in zip(given, outputs["hiddens"], strict=True))
        assert not any(state.requires_grad for state in given)
