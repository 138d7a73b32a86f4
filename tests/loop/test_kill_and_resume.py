"""Rule 15, in earnest: a process killed by SIGKILL anywhere, and resumed, ends bit-identical to one that was not.

`python test_kill_and_resume.py FOLDER` is that process. It writes what a run ends with into FOLDER/end.pt.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

from strictstep.loop import Checkpoint, fit
from strictstep.loop.loggers import JSONLLogger
from strictstep.loop.random_state import seed_all

EPOCHS = 4
SECONDS_PER_STEP = 0.004  # so that there is something to kill


def training_step(model: Any, batch: Any) -> Any:
    x, y = batch
    time.sleep(SECONDS_PER_STEP)
    x = x + 0.1 * torch.randn_like(x) * random.random()
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    return {"loss": loss, "log": {"accuracy": (logits.argmax(1) == y).float().mean(), "images": len(y)}}


def run(folder: Path) -> None:
    """Train, resuming if there is something to resume, and write what it ends with."""
    torch.set_num_threads(1)
    seed_all(1)
    data = TensorDataset(torch.randn(190, 6), torch.randint(0, 3, (190,)))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(2)
    result = fit(
        model,
        training_step,
        DataLoader(data, 4, shuffle=True, generator=generator),
        optimizer=optimizer,
        max_epochs=EPOCHS,
        gradient_accumulation_steps=3,
        scheduler=CosineAnnealingLR(optimizer, 50),
        scheduler_interval="step",
        validation_step=training_step,
        validation_batches=DataLoader(data, 16, shuffle=True),
        loggers=[JSONLLogger(folder / "run.jsonl")],
        checkpoint=Checkpoint(folder, every_steps=2, monitor="val_loss"),
        resume=True,
        progress_bar=False,
    )
    end = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": result.history,
        "global_step": result.global_step,
        "random": torch.get_rng_state(),
    }
    torch.save(end, folder / "end.pt")


def start(folder: Path) -> Any:
    return subprocess.Popen([sys.executable, __file__, str(folder)], stderr=subprocess.PIPE)


def require_clean_end(process: Any) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()


def kill(folder: Path, seconds: float) -> bool:
    """Start the run, and kill it so many seconds after it began to train; tell whether it was still running."""
    process = start(folder)
    log = folder / "run.jsonl"
    size = log.stat().st_size if log.exists() else 0
    while process.poll() is None and not (log.exists() and log.stat().st_size != size):
        time.sleep(0.002)
    time.sleep(seconds)
    process.kill()
    process.communicate()
    return bool(process.returncode == -signal.SIGKILL)


def leaves(path: Path) -> Any:
    return tree_leaves(torch.load(path, weights_only=True))


def require_identical(whole: Path, killed: Path) -> None:
    """Parameters, optimizer state, random state, history, the log file and both checkpoints, bit for bit."""
    for name in ("end.pt", "last.pt", "best.pt"):
        pairs = list(zip(leaves(whole / name), leaves(killed / name), strict=True))
        assert len(pairs) > 20
        for left, right in pairs:
            assert torch.equal(left, right) if isinstance(left, torch.Tensor) else repr(left) == repr(right)
    assert (whole / "run.jsonl").read_bytes() == (killed / "run.jsonl").read_bytes()


def check(tmp_path: Path, kills: int, seed: int) -> int:
    """Kill a run so often, at random moments; give how many kills met it running."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    require_clean_end(start(whole))
    moments = random.Random(seed)
    met = sum(kill(killed, moments.uniform(0, 0.25)) for _ in range(kills))
    require_clean_end(start(killed))
    require_identical(whole, killed)
    return met


def test_a_run_killed_three_times_ends_bit_identical(tmp_path: Path) -> None:
    assert check(tmp_path, kills=3, seed=0) == 3


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_bit_identical(tmp_path: Path) -> None:
    met = check(tmp_path, kills=20, seed=1)
    assert met >= 10  # it may come to its end before the last ones
    print(f"{met} of 20 kills met a running process")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
