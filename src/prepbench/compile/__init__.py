"""Compile: capture + settings + quantize + target = ``CompiledModel``."""

from prepbench.compile.compiled import CompiledModel as CompiledModel
from prepbench.compile.compiled import load_compiled as load_compiled
from prepbench.compile.pipeline import compile_model as compile_model
from prepbench.compile.report import CompileReport as CompileReport

__all__ = ["CompileReport", "CompiledModel", "compile_model", "load_compiled"]
