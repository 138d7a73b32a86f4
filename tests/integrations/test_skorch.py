"""skorch's nets, checked: by a decorator above their class, or by a base."""

import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNet, NeuralNetRegressor
from skorch.callbacks import PassthroughScoring
from skorch.dataset import unpack_data
from torch import Tensor, nn
from typing_extensions import TypedDict

from strictstep.schema import Scalar, SkippedStep, StepOutputError, TrainingOutput
from strictstep.schema.integrations.skorch import CheckedNet, checked

X = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Module(nn.Module):
    """A small net with dropout, so that random numbers count too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        """To one number for each row."""
        y: Tensor = self.layers(x)
        return y


class Penalized(NeuralNetRegressor):  # type: ignore[misc]  # skorch has no types
    """A loss of its own, without strictstep."""

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Any:
        """The loss and a penalty."""
        return super().get_loss(y_pred, y_true, X, training) + self.penalty()

    def penalty(self) -> Tensor:
        """The mean square of the last weights."""
        return self.module_.layers[2].weight.pow(2).mean()  # type: ignore[no-any-return]


@checked
class Logged(Penalized):
    """The same, with a term to log."""

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Any:
        """The loss as a mapping."""
        loss = super().get_loss(y_pred, y_true, X, training)
        return {"loss": loss, "log": {"penalty": self.penalty(), "rows": len(y_true)}}


class Bare(CheckedNet, NeuralNetRegressor):  # type: ignore[misc]  # skorch has no types
    """No method of its own."""


def fitted(kind: Any, optimizer: Any = torch.optim.AdamW, **options: Any) -> Any:
    """A net after three epochs of ten batches."""
    net = kind(Module, max_epochs=3, batch_size=8, lr=0.01, optimizer=optimizer, verbose=0, **options)
    torch.manual_seed(1)
    return net.fit(X, Y)


def assert_same(left: Any, right: Any) -> None:
    for one, other in zip(left.module_.parameters(), right.module_.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.LBFGS])
def test_parameters_are_those_of_the_unchecked_run(optimizer: Any) -> None:
    assert_same(fitted(NeuralNetRegressor, optimizer), fitted(Bare, optimizer))
    reference = fitted(Penalized, optimizer)
    assert_same(reference, fitted(checked(Penalized), optimizer))
    assert_same(reference, fitted(Logged, optimizer))
    assert reference.history[:, "train_loss"] == fitted(Logged, optimizer).history[:, "train_loss"]


def test_terms_land_in_the_history() -> None:
    callbacks = [PassthroughScoring("train_penalty", on_train=True), PassthroughScoring("valid_penalty")]
    history = fitted(Logged, callbacks=callbacks).history
    rows = [batch["train_rows"] for batch in history[-1, "batches"] if "train_rows" in batch]
    assert sum(rows) == 80
    assert all(penalty > 0 for penalty in history[:, "train_penalty"] + history[:, "valid_penalty"])


def test_the_first_evaluation_is_recorded() -> None:
    net = fitted(Logged, torch.optim.LBFGS)
    net.module_.layers[2].weight.data.fill_(2.0)
    net.history.new_epoch()
    net.history.new_batch()
    net.train_step((torch.from_numpy(X[:8]), torch.from_numpy(Y[:8])))
    assert net.history[-1, "batches", -1, "train_penalty"] == 4.0


def test_a_checked_net_is_cloned_and_pickled() -> None:
    net = fitted(Logged)
    assert type(clone(net)) is Logged
    again = pickle.loads(pickle.dumps(net))
    assert_same(net, again)
    assert Logged.__doc__ == "The same, with a term to log."


def wrong_net(returned: Any) -> Any:
    """A net whose `get_loss` gives what `returned` makes of the loss."""

    @checked
    class Wrong(NeuralNetRegressor):  # type: ignore[misc]  # skorch has no types
        """Wrong."""

        def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Any:
            """Anything."""
            return returned(super().get_loss(y_pred, y_true, X, training))

    return Wrong


@pytest.mark.parametrize(
    ("returned", "report"),
    [
        (
            Tensor.item,
            r"training step `Wrong.get_loss` returned an invalid output at epoch 1 ",
        ),
        (lambda loss: {"loss": loss, "log": {"x": "warm"}}, r"log\.x: expected a scalar, got str 'warm'"),
        (lambda loss: None, r"returned_none"),
        (lambda loss: SkippedStep(reason="no"), r"loss: expected a loss, since `skorch` needs one .* got SkippedStep"),
    ],
)
def test_a_wrong_loss_stops_the_fit_with_the_report(returned: Any, report: str) -> None:
    with pytest.raises(StepOutputError, match=report):
        fitted(wrong_net(returned))


def test_a_kept_error_keeps_no_graph() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def vector(loss: Tensor) -> Tensor:
        wrong = loss.repeat(2)
        seen.append(weakref.ref(wrong))
        return wrong

    with pytest.raises(StepOutputError, match="loss_not_scalar") as caught:
        fitted(wrong_net(vector))
    assert caught.value.__traceback__
    assert seen[0]() is None


def test_a_validation_loss_may_be_any_number() -> None:
    net = fitted(wrong_net(lambda loss: loss if loss.requires_grad else loss.double()))
    assert net.history[-1, "valid_loss"] > 0


@pytest.mark.parametrize(
    ("returned", "report"),
    [
        (
            lambda step: None,
            r"loss: expected a loss, since `skorch` needs one from every step, got None",
        ),
        (lambda step: step["loss"], r"y_pred: expected the key `y_pred`, which skorch gives to its callbacks"),
        (lambda step: {**step, "loss": step["loss"].item()}, r"loss: expected a scalar tensor, got float"),
        (lambda step: (step["loss"], step["y_pred"]), r"wrong_return_type"),
    ],
)
def test_a_wrong_step_stops_the_fit_before_the_optimizer_moves(returned: Any, report: str) -> None:
    @checked
    class Wrong(NeuralNet):  # type: ignore[misc]  # skorch has no types
        """Wrong."""

        def train_step_single(self, batch: Any, **fit_params: Any) -> Any:
            """Anything."""
            return returned(super().train_step_single(batch, **fit_params))

    net = Wrong(Module, nn.MSELoss, verbose=0).initialize()
    before = [parameter.detach().clone() for parameter in net.module_.parameters()]
    with pytest.raises(StepOutputError, match=report):
        net.partial_fit(X, Y)
    assert all(torch.equal(*pair) for pair in zip(before, net.module_.parameters(), strict=True))


def test_a_step_of_ones_own_may_log() -> None:
    @checked
    class Own(NeuralNet):  # type: ignore[misc]  # skorch has no types
        """Its own step."""

        def train_step_single(self, batch: Any, **fit_params: Any) -> Any:
            """The step of skorch, written out."""
            x, y = unpack_data(batch)
            y_pred = self.infer(x, **fit_params)
            loss = self.get_loss(y_pred, y, X=x, training=True)
            loss.backward()
            return {"loss": loss, "y_pred": y_pred, "log": {"bias": y_pred.mean()}}

    net = Own(Module, nn.MSELoss, verbose=0, max_epochs=1, batch_size=8).fit(X, Y)
    assert "train_bias" in net.history[-1, "batches", 0]  # pyright: ignore[reportOperatorIssue]


def test_a_schema_of_ones_own_holds_in_training() -> None:
    class Log(TypedDict):
        penalty: Scalar

    class Output(TrainingOutput[Log]):
        """One term, and no other."""

    class Own(Penalized):
        """No term."""

    with pytest.raises(StepOutputError, match=r"log\.penalty: expected the name `penalty`"):
        fitted(checked(schema=Output, strict=True)(Own))
    assert vars(checked(schema=Output)(Own))["step_schema"] is Output


@pytest.mark.parametrize("twice", [Logged, CheckedNet])
def test_a_class_is_checked_once(twice: Any) -> None:
    with pytest.raises(TypeError, match=f"expected a class that is not checked yet, got `{twice.__name__}`"):
        checked(twice)
