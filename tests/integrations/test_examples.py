"""The examples of each peer run as a user runs them, and learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["accelerate", "ignite", "keras", "skorch"])
def test_the_example_learns(peer: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{peer}_loop.py")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    accuracy = re.search(r"accuracy (\d+\.\d)%", run.stdout)
    assert accuracy, run.stdout
    assert float(accuracy[1]) > 90


@pytest.mark.slow
def test_the_example_of_transformers_logs_its_terms(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "transformers_loop.py")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    last = run.stdout.splitlines()[-1]
    loss, task, size = (float(number) for number in re.findall(r": (\d\.\d+)", last))
    assert task + size == pytest.approx(loss, abs=1e-4)
