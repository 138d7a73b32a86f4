"""A character LSTM by truncated backpropagation through time, on English text that ships with Python.

    python examples/tbptt_text.py

The text is Python's own language reference, as `help()` shows it. It is read as 32 parallel streams; each batch of
1,024 characters is cut into chunks of 64, and the LSTM's state goes from chunk to chunk and from batch to batch. The
loss on held-out text is compared with the entropy of its single characters: no model that ignores what came before can
be better than that. Takes well under a minute on two CPU cores.
"""

import math
from collections import Counter
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strictstep.loop import evaluate, fit

STREAMS = 32
BATCH_STEPS = 1024
CHUNK_STEPS = 64
HELD_OUT = 40_000  # characters
EPOCHS = 2

Batch = tuple[Tensor, Tensor]  # characters and those that follow them, int64[streams, steps] each
State = tuple[Tensor, Tensor]  # of the LSTM, float32[1, streams, width] each


class CharacterLSTM(nn.Module):
    """Characters int64[N, T] to logits float32[N, characters, T] of the next ones."""

    def __init__(self, characters: int, width: int = 128) -> None:
        """Embed, run, project."""
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, width, batch_first=True)
        self.logits = nn.Linear(width, characters)

    def forward(self, text: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over the text, from a state on."""
        outputs, after = self.lstm(self.embedding(text), state)
        return self.logits(outputs).transpose(1, 2), after


def training_step(model: nn.Module, batch: Batch, hiddens: State | None) -> dict[str, object]:
    """One chunk; `loss` is in nats per character."""
    text, following = batch
    logits, state = model(text, hiddens)
    return {"loss": cross_entropy(logits, following), "hiddens": state}


def validation_step(model: nn.Module, batch: Batch) -> Tensor:
    """A whole text at once."""
    text, following = batch
    return cross_entropy(model(text)[0], following)


def batches_of(text: str, characters: list[str], streams: int, steps: int) -> list[Batch]:
    """The text as parallel streams, cut into consecutive batches."""
    index = {character: number for number, character in enumerate(characters)}
    numbers = torch.tensor([index[character] for character in text])
    length = (len(numbers) - 1) // streams
    before, after = numbers[: streams * length], numbers[1 : streams * length + 1]
    pair = (values.view(streams, length).split(steps, dim=1) for values in (before, after))
    return list(zip(*pair, strict=True))


def unigram_entropy(text: str) -> float:
    """Entropy of the single characters, in nats."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log(share) for share in shares)


def main() -> None:
    """Train, then print the loss on held-out text next to the entropy of its characters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model is not faster on more
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    train, held_out = text[:-HELD_OUT], text[-HELD_OUT:]
    model = CharacterLSTM(len(characters))
    fit(
        model,
        training_step,
        batches_of(train, characters, STREAMS, BATCH_STEPS),
        optimizer=torch.optim.AdamW(model.parameters(), lr=4e-3),
        max_epochs=EPOCHS,
        max_grad_norm=1.0,
        tbptt=(CHUNK_STEPS, 1),
        carry_hiddens=True,
    )
    values: dict[str, Any] = evaluate(model, validation_step, batches_of(held_out, characters, 8, HELD_OUT))
    print(f"held-out loss {values['loss']:.3f} nats per character, unigram entropy {unigram_entropy(held_out):.3f}")


if __name__ == "__main__":
    main()
