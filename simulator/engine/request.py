"""One request on its way through the simulated cluster. Times are seconds of the simulated clock."""

from typing import Literal

SimOutcome = Literal["pending", "finished", "shed", "refused"]


class SimRequest:
    """What happened to a request.

    ``computed`` are the tokens that have KV entries; ``target`` those that prefill must compute: the prompt, and after a preemption
    also the answer so far. From then on it decodes.
    """

    __slots__ = (
        "arrived_s",
        "completion_fp8",
        "completion_fp16",
        "computed",
        "finished_s",
        "first_s",
        "generated",
        "has_room",
        "index",
        "is_fast",
        "outcome",
        "output_tokens",
        "pinned",
        "preemptions",
        "prompt_fp8",
        "prompt_fp16",
        "prompt_tokens",
        "queued_s",
        "target",
    )

    def __init__(
        self, index: int, arrived_s: float, prompt_tokens: int, output_tokens: int, pinned: bool = False
    ) -> None:
        self.index = index
        self.arrived_s = arrived_s
        self.queued_s = arrived_s  # when the engine has it
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.pinned = pinned
        self.is_fast = False  # a step has computed something of it in FP8
        self.has_room = False  # its engine had room for its prompt when it came
        self.outcome: SimOutcome = "pending"
        self.first_s = 0.0
        self.finished_s = 0.0
        self.generated = 0
        self.target = prompt_tokens
        self.computed = 0
        self.preemptions = 0
        self.prompt_fp16 = 0
        self.prompt_fp8 = 0
        self.completion_fp16 = 0
        self.completion_fp8 = 0

    @property
    def ttft_ms(self) -> float:
        """Time to first token."""
        return (self.first_s - self.arrived_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first; None for one token."""
        if self.output_tokens < 2:
            return None
        return (self.finished_s - self.first_s) * 1e3 / (self.output_tokens - 1)

    def due_s(self, tpot_s: float, grace: int) -> float:
        """When its next token is due, while it decodes."""
        return self.first_s + tpot_s * (self.generated + grace)
