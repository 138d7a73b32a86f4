"""Notes on exceptions that pass through the loop: which step, epoch and batch they belong to."""

from strictstep.schema.errors import Stage, StepOutputError


def add_place(
    error: Exception, step_name: str, epoch: int | None, batch_idx: int | None, stage: Stage = "training"
) -> None:
    """Note the step, and the numbers that are known; a `StepOutputError` of a step's return says them itself.

    Example:
        >>> error = KeyError("label")
        >>> add_place(error, "training_step", 2, 17)
        >>> error.__notes__
        ['in training step `training_step`, epoch 2, batch 17']
    """
    known = [f", {name} {number}" for name, number in (("epoch", epoch), ("batch", batch_idx)) if number is not None]
    if isinstance(error, StepOutputError):
        error.place(epoch, batch_idx)
        if error.stage is not None:
            return
    error.add_note(f"in {'training' if stage == 'manual' else stage} step `{step_name}`{''.join(known)}")
