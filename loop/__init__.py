"""The training loop of strictstep: it consumes only outputs that `strictstep.schema` has checked."""

if __name__ == "loop":
    raise ImportError("import `strictstep.loop`, not `loop`: a second copy would have classes of its own")
