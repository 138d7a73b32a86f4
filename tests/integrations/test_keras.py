"""Checked steps in Keras 3 on torch: the decorator above a `train_step`, and a checked step inside one."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from strictstep.schema import StepOutputError, validate_step

os.environ["KERAS_BACKEND"] = "torch"  # Keras reads it once, when it is imported

import keras

X = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
Y = X.sum(dim=1, keepdim=True)


class Net(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A small net with dropout and a train step of its own, as Keras's guide writes it for torch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(4)
        self.dropout = keras.layers.Dropout(0.2, seed=3)
        self.last = keras.layers.Dense(1)

    def call(self, x: Tensor, training: bool = False) -> Any:
        """To one number for each row."""
        return self.last(self.dropout(self.inner(x), training=training))

    def loss_of(self, data: Any) -> Any:
        """What the step returns: the `loss` and what to log of it."""
        x, y = data
        loss = (self(x, training=True) - y).pow(2).mean()
        return {"loss": loss, "log": {"rms": loss.detach().sqrt()}}

    def descend(self, loss: Tensor) -> None:
        """Backward, and the optimizer of Keras."""
        self.zero_grad()
        loss.backward()
        weights = self.trainable_weights[:]
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)

    def train_step(self, data: Any) -> Any:
        """The whole step, unchecked."""
        returned = self.loss_of(data)
        self.descend(returned["loss"])
        return {**returned, "loss": returned["loss"].detach()}  # Keras makes numbers of what it gets


class WholeStep(Net):
    """The decorator above the step that Keras calls; it has run its own backward, so it is a manual one."""

    @validate_step(stage="manual", returns="original")
    def train_step(self, data: Any) -> Any:
        """The whole step, checked."""
        return super().train_step(data)


class InnerStep(Net):
    """The check before backward: a wrong loss moves nothing."""

    @validate_step
    def checked_loss(self, data: Any) -> Any:
        """The loss alone, checked."""
        return self.loss_of(data)

    def train_step(self, data: Any) -> Any:
        """Keras takes names to numbers."""
        output: Any = self.checked_loss(data)
        self.descend(output.loss)
        return {"loss": output.loss.detach(), **output.log}


def fitted(kind: type[Net]) -> tuple[Any, dict[str, list[float]]]:
    """A model after three epochs of ten batches, and its history."""
    keras.utils.set_random_seed(0)
    model: Any = kind()
    model.compile(optimizer=keras.optimizers.AdamW(0.01), loss="mse")
    return model, model.fit(X, Y, batch_size=8, epochs=3, verbose=0).history


@pytest.mark.parametrize("kind", [WholeStep, InnerStep])
def test_parameters_are_those_of_the_unchecked_run(kind: type[Net]) -> None:
    plain, _ = fitted(Net)
    model, history = fitted(kind)
    for reference, weight in zip(plain.weights, model.weights, strict=True):
        assert torch.equal(reference.value, weight.value)
    assert history.keys() == {"loss", "rms"}
    assert history["rms"][-1] == pytest.approx(history["loss"][-1] ** 0.5)


def test_a_wrong_return_stops_the_fit_with_the_report() -> None:
    class Wrong(InnerStep):
        """A number in place of the loss."""

        def loss_of(self, data: Any) -> Any:
            """The loss by `.item()`."""
            return {"loss": super().loss_of(data)["loss"].item()}

    with pytest.raises(StepOutputError, match=r"loss: expected a differentiable scalar, got float"):
        fitted(Wrong)
