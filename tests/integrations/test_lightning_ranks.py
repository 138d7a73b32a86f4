"""Two ranks with the check on: identical training, and an end on both wherever one of them cannot go on."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("lightning_two_ranks.py")


def two_ranks(case: str, folder: Path) -> list[str]:
    """What each of two ranks ended with."""
    folder.mkdir()
    command = [sys.executable, "-W", "ignore", str(SCRIPT), case, str(folder)]
    subprocess.run(command, capture_output=True, timeout=300, check=False)
    return [(folder / f"rank{rank}.txt").read_text() for rank in (0, 1)]


def test_two_ranks_train_as_they_do_unchecked(tmp_path: Path) -> None:
    without, with_check = two_ranks("unchecked", tmp_path / "unchecked"), two_ranks("valid", tmp_path / "valid")
    assert without == with_check
    assert without[0] == without[1]


@pytest.mark.parametrize(("case", "ranks"), [("skip", "rank 1"), ("skip-everywhere", "ranks 0 and 1")])
def test_a_skip_ends_the_run_on_every_rank(case: str, ranks: str, tmp_path: Path) -> None:
    said = f"at epoch 0, batch 1 was skipped on {ranks}, and Lightning cannot skip in a run of 2 ranks"
    assert all(
        text.startswith(f"SkipRefusedError: training step `Net.training_step` {said}\n  help:")
        for text in two_ranks(case, tmp_path / case)
    )


def test_a_wrong_return_on_one_rank_ends_the_run_on_every_rank(tmp_path: Path) -> None:
    other, own = two_ranks("invalid", tmp_path / "invalid")
    assert own.startswith(
        "StepOutputError: training step `Net.training_step` returned an invalid output at epoch 0, batch 1, rank 1 (1 p"
    )
    assert other == (
        "OtherRankError: training step `Net.training_step` at epoch 0, batch 1 returned an invalid output on rank 1\n"
        "  help: read the report of rank 1"
    )
