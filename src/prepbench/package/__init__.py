"""What a compile returns: ``CompiledModel`` with its report, written to a folder and read from it."""

from prepbench.package.compiled import CompiledModel as CompiledModel
from prepbench.package.loading import load_compiled as load_compiled
from prepbench.package.report import CompileReport as CompileReport

__all__ = ["CompileReport", "CompiledModel", "load_compiled"]
