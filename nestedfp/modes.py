"""The two precisions a NestedFP weight can run in. Standard library only: the controller imports this without torch."""

import enum


class Mode(enum.StrEnum):
    """Precision of one engine step."""

    FP16 = "fp16"  # both planes: exactly the stored FP16 weights
    FP8 = "fp8"  # upper plane only: the weights rounded to E4M3


CODES = {Mode.FP16: 0, Mode.FP8: 1}  # the modes' numbers in the compiled libraries (csrc/precision.h)


class DirectiveMode(enum.StrEnum):
    """What the controller may tell an engine: a fixed precision, or to choose for each step by the step rule."""

    FP16 = "fp16"
    FP8 = "fp8"
    AUTO = "auto"
