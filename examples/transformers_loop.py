"""Handwritten digits with the `Trainer` of Transformers: every term of the loss lands in its logs.

python examples/transformers_loop.py
"""

import tempfile
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from strictstep.schema.integrations.transformers import checked


@checked  # the one line
class DigitsTrainer(Trainer):
    """A trainer with a loss of two terms."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The task's loss, and a penalty on large logits; `Trainer` itself takes no mapping."""
        outputs = model(**inputs)
        size = outputs.logits.pow(2).mean() * 1e-3
        return {"loss": outputs.loss + size, "log": {"loss_task": outputs.loss, "loss_size": size}}


def main() -> None:
    """Train a tiny vision transformer for a minute or less, and print what was logged last."""
    torch.manual_seed(0)
    digits: Any = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    rows: Any = [{"pixel_values": image, "labels": label} for image, label in zip(images, digits.target, strict=True)]
    sizes: Any = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 32, "intermediate_size": 64}
    layers: Any = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 10}
    model = ViTForImageClassification(ViTConfig(**sizes, **layers))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=200,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            logging_steps=50,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = DigitsTrainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
    print({name: trainer.state.log_history[-2][name] for name in ("loss", "loss_task", "loss_size")})


if __name__ == "__main__":
    main()
