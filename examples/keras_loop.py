"""Handwritten digits with Keras 3 on torch: the check stands before backward in a `train_step` of one's own.

python examples/keras_loop.py
"""

import os
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from strictstep.schema import SkippedStep, validate_step

os.environ["KERAS_BACKEND"] = "torch"  # Keras reads it once, when it is imported

import keras


class DigitsModel(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A small net."""

    def __init__(self) -> None:
        """Two layers."""
        super().__init__()
        self.inner = keras.layers.Dense(64, activation="relu")
        self.last = keras.layers.Dense(10)

    def call(self, images: Any) -> Any:
        """From float32[N, 64] to logits float32[N, 10]."""
        return self.last(self.inner(images))

    @validate_step  # the one line
    def checked_loss(self, data: Any) -> dict[str, object]:
        """One batch; `loss` is the mean cross-entropy in nats."""
        images, labels = data
        logits = self(images)
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        return {"loss": cross_entropy(logits, labels), "log": {"accuracy": accuracy}}

    def train_step(self, data: Any) -> dict[str, Any]:
        """What Keras calls for each batch; it takes names to numbers."""
        output = self.checked_loss(data)
        if isinstance(output, SkippedStep):
            return {**output.log}
        self.zero_grad()
        output.loss.backward()
        weights = self.trainable_weights[:]
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return {"loss": output.loss.detach(), **output.log}


def main() -> None:
    """Train for ten epochs, and print the accuracy of the last batch."""
    keras.utils.set_random_seed(0)
    digits: Any = load_digits()
    model: Any = DigitsModel()
    model.compile(optimizer=keras.optimizers.AdamW(0.01))
    history = model.fit((digits.data / 16).astype("float32"), digits.target, batch_size=64, epochs=10, verbose=0)
    print(f"accuracy {history.history['accuracy'][-1]:.1%}")


if __name__ == "__main__":
    main()
