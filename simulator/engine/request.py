"""One request on its way through the simulated cluster. Times are seconds of the simulated clock."""

from dataclasses import dataclass
from typing import Literal

SimOutcome = Literal["pending", "finished", "shed", "refused"]


@dataclass(slots=True, eq=False)
class SimRequest:
    """What happened to a request."""

    index: int
    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    pinned: bool = False
    queued_s: float = 0.0  # when the engine has it
    is_fast: bool = False  # a step has computed something of it in FP8
    has_room: bool = False  # its engine had room for its prompt when it came
    outcome: SimOutcome = "pending"
    first_s: float = 0.0
    finished_s: float = 0.0
    generated: int = 0
    target: int = 0  # tokens that prefill must compute: the prompt, after a preemption also the answer so far
    computed: int = 0  # tokens that have KV entries
    preemptions: int = 0
    prompt_fp16: int = 0
    prompt_fp8: int = 0
    completion_fp16: int = 0
    completion_fp8: int = 0

    def __post_init__(self) -> None:
        self.target = self.prompt_tokens

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
