"""An engine before a step of exact and fast rows, and the step that is planned for it. Pure; standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

MOST_PLANNED = 48  # prompts of the line that are looked at
# With more of its places or of its KV cache taken an engine soon lets nobody in, and FP8, which takes half of both, comes too late.
PLACES_SHARE, KV_SHARE = 0.5, 0.7
LEAST_PLACES = 16  # an engine of fewer is not full with half of them taken: those that wait are soon computed
# Deadlines after which a first token's is missed for certain: policies hand down a share of the objective.
MISSED_AFTER = 2.5


class Prompt(NamedTuple):
    """A prompt in line."""

    left_tokens: int  # still to be computed
    due_s: float  # its first token; infinity: at no time; minus infinity: it has missed its objective for certain
    is_exact: (
        bool  # nothing of it has been computed in FP8, nobody asked for a fast answer, and it may still be in time
    )
    is_pinned: bool
    has_begun: bool  # it has a place among those that run
    is_cut: bool = True  # a step may compute any part of it; else all that is left


class Decode(NamedTuple):
    """A request that decodes."""

    due_s: float  # its next token
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class RowState:
    """An engine before a step; times are seconds of one clock."""

    now_s: float  # when the step begins
    exact: Sequence[Decode]
    fast: Sequence[Decode]
    line: Sequence[Prompt]  # in the order in which prompts are to be computed
    places: int  # for prompts that have not begun
    budget_tokens: int
    step_s: float  # the TPOT deadline, which steps may take
    # Places or KV cache taken, of the share that may be; above 1 the engine is full.
    fullness: float = 0.0
    decode_rows: int = 1  # of each request that decodes: its last token and its drafts, the most of any


class PromptChunk(NamedTuple):
    """Tokens of a prompt in the step."""

    prompt: int  # index in the line
    tokens: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A step. Exact decodes that are in neither tuple sit it out; all fast ones run.

    Attributes:
        exact: indices of the exact decodes that run as such.
        demoted: indices of the exact decodes that run, and are fast from now on.
        chunks: of prompts.
        is_whole: every row is computed in FP16, and no class changes.
        reason: why a row is fast that was exact or might have been: ``"ttft_slack"``, ``"tpot_slack"`` (decodes were demoted);
            ``"fast"``: those were fast before.
    """

    exact: tuple[int, ...]
    demoted: tuple[int, ...]
    chunks: tuple[PromptChunk, ...]
    is_whole: bool
    reason: str = "fast"


def fullness(inside: int, places: int, kv_usage: float) -> float:
    """Return ``RowState.fullness`` of an engine with so many requests inside, those that wait among them."""
    # One alone takes what it needs.
    return max(inside / max(places, LEAST_PLACES) / PLACES_SHARE, kv_usage / KV_SHARE if inside > 1 else 0.0)


def first_due_s(since_s: float, ttft_s: float, now_s: float) -> float:
    """Return when a prompt that waits since then is due; minus infinity once it has missed its objective for certain."""
    return since_s + ttft_s if now_s - since_s < MISSED_AFTER * ttft_s else -inf
