"""Hugging Face architectures from small configurations with random weights: one function per architecture.

Not part of :data:`tests.zoo.ZOO`, because importing ``transformers`` takes seconds.
"""

from __future__ import annotations

import importlib

from tests.zoo.huggingface.registry import ARCHITECTURES, LEAVES, LOOPS, build, without_log_lines

__all__ = ["ARCHITECTURES", "LEAVES", "LOOPS", "build", "without_log_lines"]

for _family in ("text", "sequence_to_sequence", "vision", "audio", "multimodal"):
    importlib.import_module(f"{__name__}.{_family}")
