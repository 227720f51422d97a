"""The stored generation of a candidate: its texts beside those of the float model, and their cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WrittenText:
    """The text after one prompt, in three parts; all of it is untrusted.

    Attributes:
        same: the part that equals the float model's text.
        other: the first token that differs; empty where none does.
        rest: the part after it.
        agree: how many tokens come before it.
        tokens: how many tokens there are.
    """

    same: str
    other: str = ""
    rest: str = ""
    agree: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class RunGeneration:
    """The texts of a run, beside those of the float model from the same rounds.

    Attributes:
        first_token_ms: median time from a prompt to its first token; None where it was not measured.
        tokens_per_second: of all prompts.
        peak_bytes: most memory of the process.
        float_first_token_ms: of the float model.
        float_tokens_per_second: of the float model.
        float_peak_bytes: of the float model.
        prompts: the prompts as text, as many as are kept.
        texts: the run's text after each.
        float_texts: the float model's text.
    """

    first_token_ms: float | None = None
    tokens_per_second: float | None = None
    peak_bytes: int | None = None
    float_first_token_ms: float | None = None
    float_tokens_per_second: float | None = None
    float_peak_bytes: int | None = None
    prompts: tuple[str, ...] = ()
    texts: tuple[WrittenText, ...] = ()
    float_texts: tuple[str, ...] = ()
