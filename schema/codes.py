"""Each error code explained: what causes it, a step that triggers it, the cure.

The examples are run by a test: each raises its code. In them, `model` is any module and `batch` a batch of it.
"""

from typing import NamedTuple

from strictstep.schema.errors import ErrorCode


class Explanation(NamedTuple):
    """The page of one error code.

    Attributes:
        cause: what is wrong, and why it matters.
        example: a step that triggers the error, and the call that checks it.
        cure: what to do.
    """

    cause: str
    example: str
    cure: str


def _step(body: str, check: str = "coerce(training_step(model, batch))") -> str:
    return f"def training_step(model, batch):\n{body.strip(chr(10))}\n\n{check}"


EXPLANATIONS: dict[ErrorCode, Explanation] = {
    "loss_missing": Explanation(
        "The step returned names, but none of them is `loss`. Names are matched exactly, so another spelling is "
        "another name; without a loss nothing would be trained.",
        _step("""
    loss = model(batch).mean()
    return {"Loss": loss}
"""),
        "Return the loss under the key `loss`. Sum several parts into it and put the parts in `log`. To skip a batch "
        'on purpose, return `SkippedStep(reason="...")`.',
    ),
    "loss_none": Explanation(
        "There is a `loss`, and it is `None`: often the branch that computes it was not taken.",
        _step("""
    loss = None
    if batch.isnan().any():
        loss = model(batch).mean()
    return {"loss": loss}
"""),
        'Compute the loss in every branch, or say that the batch is skipped: `return SkippedStep(reason="...")`. In '
        "manual optimization and in evaluation `None` is accepted.",
    ),
    "loss_not_tensor": Explanation(
        "The loss is a Python number, text or another object. Only a tensor leads back to the parameters: a number "
        "would train nothing.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss.item()}
"""),
        "Return the tensor itself, without `.item()`, `float(...)` or `.numpy()`. Log the number if you want it.",
    ),
    "loss_not_scalar": Explanation(
        "The loss is a tensor with several elements, or with none. `backward` starts from one number.",
        _step("""
    loss = model(batch)
    return {"loss": loss}
"""),
        'Reduce it, for example `loss.mean()`, or let the loss function do it (`reduction="mean"`). Where a batch has '
        "no targets, return `SkippedStep`.",
    ),
    "loss_not_floating": Explanation(
        "The loss has an integer, boolean or complex dtype. Rounding and comparing cut the graph, and there is no "
        "order of complex numbers to descend by.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss.long()}
"""),
        "Keep the loss floating: leave out `.long()`, `.int()`, `.argmax()` and comparisons; of a complex number take "
        "`.abs()` or `.real`.",
    ),
    "loss_not_strided": Explanation(
        "The loss is sparse or nested. Loops and optimizers expect a dense scalar.",
        _step("""
    loss = model(batch).to_sparse()
    return {"loss": loss}
"""),
        "Reduce it to a dense scalar, as `.sum()` does, or call `.to_dense()` first.",
    ),
    "loss_no_grad": Explanation(
        "The loss is not attached to a graph: it was detached, it is a constant, or it was computed while grad mode "
        "was off or in inference mode. Backward would fail, or train nothing.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss.detach()}
"""),
        "Leave out `.detach()`, `.data`, `torch.no_grad()` and `torch.tensor(...)` on the way from the model's output "
        "to the loss, and see that some parameter requires a gradient.",
    ),
    "loss_leaf": Explanation(
        "The loss requires a gradient, but no operation made it: it is a leaf, and leads to no parameter but itself.",
        _step("""
    loss = torch.zeros((), requires_grad=True)
    return {"loss": loss}
"""),
        "Compute the loss from the model's output. For a loss of zero that keeps the graph, write `output.sum() * 0`.",
    ),
    "loss_non_finite": Explanation(
        "The loss is NaN or infinite. The schema never reads a tensor's value, so this is reported by the loop, which "
        'does. What it does is chosen by `on_non_finite`: `"error"`, `"skip"` or `"keep"`.',
        _step(
            """
    loss = model(batch).sum() * float("inf")
    return {"loss": loss}
""",
            "fit(model, training_step, batches, optimizer=optimizer, max_epochs=1)",
        ),
        "Look for a division by zero, the logarithm of zero, a learning rate that is too high, or an overflow in half "
        "precision. `torch.autograd.detect_anomaly()` names the operation.",
    ),
    "scalar_wrong_type": Explanation(
        "A value in `log` or `progress_bar` is not a real number: text, `None`, a list or another object. Strings are "
        "never parsed.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss, "log": {"phase": "warm"}}
"""),
        "Log numbers, and return anything else in `metrics`. Leave a name out when there is nothing to log.",
    ),
    "scalar_not_single": Explanation(
        "A value in `log` or `progress_bar` is a tensor or an array with several elements, or with none.",
        _step("""
    output = model(batch)
    return {"loss": output.mean(), "log": {"accuracy": output > 0}}
"""),
        "Reduce it first, for example `(output > 0).float().mean()`, or return it in `metrics`.",
    ),
    "scalar_complex": Explanation(
        "A value in `log` or `progress_bar` is complex; a logger can draw only real numbers.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss, "log": {"phase": 1j}}
"""),
        "Log its real part, its imaginary part or its magnitude, `abs(x)`.",
    ),
    "scalar_not_strided": Explanation(
        "A value in `log` or `progress_bar` is a sparse or nested tensor.",
        _step("""
    output = model(batch)
    return {"loss": output.mean(), "log": {"size": output.sum().to_sparse()}}
"""),
        "Make it dense first, for example `x.to_dense()`.",
    ),
    "field_not_mapping": Explanation(
        "`log`, `progress_bar` or `metrics` is not a mapping of names to values.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss, "log": [loss]}
"""),
        'Return a dict of names, for example `{"accuracy": accuracy}`; leave the field out when there is nothing to '
        "say. Only `progress_bar` may be a list, of names of `log` values.",
    ),
    "key_not_string": Explanation(
        "A key in a returned mapping is not text, such as the number of a layer or of a class.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss, "log": {0: loss}}
"""),
        'Use text for keys, for example `str(key)` or `f"layer_{key}"`.',
    ),
    "key_unknown": Explanation(
        "A name has no place: it is none of the five fields (an error only with `strict=True`, else it moves to "
        "`metrics` with a warning), or the schema does not list it.",
        _step(
            """
    loss = model(batch).mean()
    return {"loss": loss, "logs": {"rate": 0.1}}
""",
            "coerce(training_step(model, batch), strict=True)",
        ),
        "Rename it (the help names the nearest one), put it in `metrics`, or add it to your schema.",
    ),
    "key_missing": Explanation(
        "Your schema lists a name that the step did not return.",
        "class DigitsLog(TypedDict):\n    accuracy: Scalar\n\n"
        + _step(
            """
    return {"loss": model(batch).mean(), "log": {}}
""",
            "coerce(training_step(model, batch), schema=TrainingOutput[DigitsLog])",
        ),
        "Return it at every step, or mark it `NotRequired` in the schema.",
    ),
    "key_twice": Explanation(
        "One name came twice: beyond the five fields and in `metrics` as well, or as two keys with the same text.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss, "predictions": batch, "metrics": {"predictions": batch}}
"""),
        "Rename one of the two, or leave it out.",
    ),
    "progress_bar_unknown_name": Explanation(
        "`progress_bar` names a `log` value that is not there.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss, "log": {"accuracy": 0.5}, "progress_bar": ["acuracy"]}
"""),
        "Write the name as in `log`, or give `progress_bar` a dict with values of its own.",
    ),
    "hiddens_not_tensor": Explanation(
        "Something in `hiddens` is neither a tensor nor `None`, nor a list, tuple, namedtuple or dict of them. Hidden "
        "state is detached leaf by leaf, which an object of another type does not allow.",
        _step("""
    loss = model(batch).mean()
    return {"loss": loss, "hiddens": (batch, 3)}
"""),
        "Keep only tensors in `hiddens`, and return anything else in `metrics`.",
    ),
    "too_deep": Explanation(
        "Containers in `hiddens` or `metrics` are nested more than 64 levels deep, or one of them contains itself.",
        _step("""
    state = [batch]
    state.append(state)
    return {"loss": model(batch).mean(), "hiddens": state}
"""),
        "Return a flatter structure, for example a list of layers.",
    ),
    "annotation_mismatch": Explanation(
        "A value does not fit what your schema annotates: another type, shape or dtype, or a dimension that has "
        "another size under the same name elsewhere in the output.",
        "class DigitsMetrics(TypedDict):\n    predictions: int\n\n"
        + _step(
            """
    return {"loss": model(batch).mean(), "metrics": {"predictions": "three"}}
""",
            "coerce(training_step(model, batch), schema=TrainingOutput[Any, DigitsMetrics])",
        ),
        "Return what the schema annotates, or correct the annotation.",
    ),
    "own_check_failed": Explanation(
        "A validator of your own model refused the output; the message is its own.",
        "class Checked(TrainingOutput):\n"
        '    @field_validator("log")\n'
        "    @classmethod\n"
        "    def _has_rate(cls, log):\n"
        '        assert "rate" in log, "expected the learning rate in the log"\n'
        "        return log\n\n"
        + _step(
            """
    return {"loss": model(batch).mean(), "log": {}}
""",
            "coerce(training_step(model, batch), schema=Checked)",
        ),
        "See the validators of your model.",
    ),
    "skip_with_loss": Explanation(
        "A `SkippedStep` was given a loss; a step with a loss is not skipped.",
        _step(
            """
    return SkippedStep(reason="no boxes", loss=model(batch).mean())
"""
        ),
        "Return `TrainingOutput(loss=...)`, or leave the loss out.",
    ),
    "reason_not_string": Explanation(
        "A `SkippedStep` has no `reason`, or one that is not text. The reason is what you will read in the history.",
        _step("""
    return SkippedStep()
"""),
        'Say in words why the batch is skipped: `SkippedStep(reason="no boxes")`.',
    ),
    "wrong_stage": Explanation(
        "The step returned an output model of another stage, such as an `EvaluationOutput` from a training step.",
        _step("""
    return EvaluationOutput(loss=model(batch).mean())
"""),
        "Return the model of the stage, or check the step with the stage that it is for.",
    ),
    "wrong_return_type": Explanation(
        "The returned value has no form that can be read: a number, text, a list, a generator, a coroutine, a class. "
        "Accepted are a tensor, a mapping, a dataclass, namedtuple, attrs or pydantic object, an output model, `None`.",
        _step("""
    loss = model(batch).mean()
    return loss, batch
"""),
        'Name what you return: `{"loss": loss, "metrics": {"images": batch}}`. Return, do not `yield`; a training step '
        "is no `async def`.",
    ),
    "returned_none": Explanation(
        'The step returned `None` and `on_none="error"` was asked for. By default this skips the batch and warns once: '
        "a forgotten `return` would else train nothing for a night.",
        _step(
            """
    loss = model(batch).mean()
""",
            'coerce(training_step(model, batch), on_none="error")',
        ),
        'Return the loss. To skip a batch on purpose, return `SkippedStep(reason="...")`.',
    ),
    "unreadable": Explanation(
        "Something in the return raised an exception of its own when it was looked at.",
        "class Lazy(UserDict):\n"
        "    def items(self):\n"
        '        raise ConnectionError("gone")\n\n'
        + _step("""
    return {"loss": model(batch).mean(), "log": Lazy()}
"""),
        "Return plain tensors, numbers and containers.",
    ),
}
