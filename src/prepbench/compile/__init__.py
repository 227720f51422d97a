"""Compile: capture + settings + quantize + target = ``CompiledModel``."""

from prepbench.compile.compiled import CompiledModel as CompiledModel
from prepbench.compile.kept_stages import KeptStages as KeptStages
from prepbench.compile.loading import load_compiled as load_compiled
from prepbench.compile.pipeline import compile_model as compile_model
from prepbench.compile.prepare_training import trainable as trainable
from prepbench.compile.pruned_model import prune as prune
from prepbench.compile.report import CompileReport as CompileReport
from prepbench.compile.traceability import check_traceability as check_traceability

__all__ = [
    "CompileReport",
    "CompiledModel",
    "KeptStages",
    "check_traceability",
    "compile_model",
    "load_compiled",
    "prune",
    "trainable",
]
