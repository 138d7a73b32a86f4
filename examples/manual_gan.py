"""A GAN with two optimizers: the step goes backward and steps them itself, and what it returns is checked all the same.

    python examples/manual_gan.py

Generator and discriminator are small perceptrons; the images are scikit-learn's digits (1,797 real images of 8 x 8
pixels, shipped with that package). The Fréchet distance between the pixels of real and generated images is printed
before and after training. Takes well under a minute on two CPU cores.
"""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from strictstep.loop import fit

EPOCHS = 60
BATCH_SIZE = 64
NOISE = 16
PIXELS = 64


class Gan(nn.Module):
    """Noise float32[N, 16] to images float32[N, 64], and images to logits float32[N, 1] of being real."""

    def __init__(self, width: int = 256) -> None:
        """Two perceptrons."""
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(NOISE, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, PIXELS),
            nn.Sigmoid(),
        )
        self.discriminator = nn.Sequential(
            nn.Linear(PIXELS, width),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.3),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.3),
            nn.Linear(width, 1),
        )

    def sample(self, images: int) -> Tensor:
        """Generated images: float32[images, 64]."""
        generated: Tensor = self.generator(torch.randn(images, NOISE))
        return generated


def training_step(model: Gan, batch: tuple[Tensor], optimizers: dict[str, Optimizer]) -> dict[str, object]:
    """One step of the discriminator, then one of the generator."""
    (images,) = batch
    generated = model.sample(len(images))
    real, fake = model.discriminator(images), model.discriminator(generated.detach())
    told_apart = softplus(-real).mean() + softplus(fake).mean()
    take_step(optimizers["discriminator"], told_apart)

    not_fooled = softplus(-model.discriminator(generated)).mean()
    take_step(optimizers["generator"], not_fooled)
    accuracy = torch.cat([real > 0, fake < 0]).float().mean()
    log = {"discriminator": told_apart, "generator": not_fooled, "accuracy": accuracy}
    return {"log": log, "progress_bar": ["generator", "accuracy"]}


def take_step(optimizer: Optimizer, loss: Tensor) -> None:
    """The three lines that automatic optimization spares."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def load_images() -> Tensor:
    """The digits: float32[1797, 64] in 0..1."""
    digits: Any = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16


@torch.no_grad()
def frechet_distance(real: Tensor, generated: Tensor) -> float:
    """Distance of two normal distributions with the means and covariances of the pixels (Dowson and Landau, 1982)."""
    means = real.mean(dim=0) - generated.mean(dim=0)
    first, second = real.T.cov().double(), generated.T.cov().double()
    shared = torch.linalg.eigvals(first @ second).real.clamp(min=0).sqrt().sum()
    return float(means.square().sum() + first.trace() + second.trace() - 2 * shared)


def main() -> None:
    """Train, then print the distances."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model is not faster on more
    images = load_images()
    model = Gan()
    before = frechet_distance(images, model.sample(len(images)))
    optimizers = {
        "generator": AdamW(model.generator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        "discriminator": AdamW(model.discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999)),
    }
    batches = DataLoader(TensorDataset(images), BATCH_SIZE, shuffle=True, drop_last=True)
    result = fit(model, training_step, batches, optimizer=optimizers, max_epochs=EPOCHS)
    after = frechet_distance(images, model.sample(len(images)))
    print(f"the discriminator is right about {result.history[-1]['accuracy']:.1%} of the images")
    print(f"Fréchet distance to the real images: {before:.2f} before, {after:.2f} after training")


if __name__ == "__main__":
    main()
