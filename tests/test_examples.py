"""The examples of training, run as a reader runs them: each prints what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

slow = pytest.mark.slow


def printed(example: str) -> str:
    """What an example prints; a warning ends it."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / example)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout


def number(pattern: str, text: str) -> float:
    """The number behind a text that is found once."""
    (found,) = re.findall(pattern + r" (-?\d[\d.]*(?:e[+-]\d+)?)", text)
    return float(found)


def test_lbfgs_with_accumulation_reaches_the_least_squares_solution() -> None:
    text = printed("lbfgs_regression.py")
    assert "micro-batches of [64, 64, 64, 64, 64, 64, 58] patients" in text
    assert number("relative distance to the least-squares solution:", text) <= 1e-4


@slow
def test_the_plain_loop_reaches_97_percent() -> None:
    assert number("held-out accuracy", printed("own_loop.py")) >= 97


@slow
def test_truncated_backpropagation_learns_more_than_the_frequencies_of_characters() -> None:
    text = printed("tbptt_text.py")
    loss, entropy = number("held-out loss", text), number("unigram entropy", text)
    assert 2.5 < entropy < 3.5  # English, in nats
    assert loss < 0.7 * entropy


@slow
def test_the_gan_comes_nearer_to_the_real_images() -> None:
    before, after = re.findall(r"([\d.]+) (?:before|after)", printed("manual_gan.py"))
    assert float(after) < float(before) / 4


@slow
def test_torchmetrics_computes_what_scikit_learn_does() -> None:
    text = printed("metrics_torchmetrics.py")
    score = number("macro F1", text)
    assert score == pytest.approx(number("by scikit-learn", text), abs=1e-4)
    assert score > 0.95
    assert 0.8 < number("recall of the worst class", text) <= 1


def test_every_example_of_the_loop_is_named_in_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    examples = [path for path in EXAMPLES.glob("*.py") if "strictstep.loop" in path.read_text()]
    assert len(examples) >= 5
    assert [path.name for path in examples if path.name not in tests] == []
