"""Compile: capture + settings + quantize + target = ``CompiledModel``."""

from prepbench.compile.kept_stages import KeptStages as KeptStages
from prepbench.compile.pipeline import compile_model as compile_model
from prepbench.compile.prepare_training import trainable as trainable
from prepbench.compile.pruned_model import prune as prune
from prepbench.compile.traceability import check_traceability as check_traceability

__all__ = ["KeptStages", "check_traceability", "compile_model", "prune", "trainable"]
