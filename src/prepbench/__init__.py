"""prepbench: a workbench in Jupyter for preparing PyTorch models.

Open a model, see what can be captured and why not, choose dynamic axes and quantization settings, compile, compare.
Names are loaded when they are first
used (PEP 562), so that ``import prepbench`` costs next to nothing on top of ``import torch``.

Example:
    >>> import prepbench as pb
    >>> pb.QuantizationSettings().weights_num_bits
    8
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prepbench._display import static as static
    from prepbench.adapt.recover import Recovery as Recovery
    from prepbench.adapt.recover import recover as recover
    from prepbench.adapt.trainable_model import TrainableModel as TrainableModel
    from prepbench.bench import Bench as Bench
    from prepbench.capture.aten.capture import capture as capture
    from prepbench.capture.aten.captured import Captured as Captured
    from prepbench.capture.modules.collection import GraphCollection as GraphCollection
    from prepbench.capture.modules.collection import recursive_trace as recursive_trace
    from prepbench.capture.modules.tracer import RobustTracer as RobustTracer
    from prepbench.capture.sizes.axis import Axis as Axis
    from prepbench.capture.sizes.dynamic_axes import DynamicAxes as DynamicAxes
    from prepbench.compile import KeptStages as KeptStages
    from prepbench.compile import check_traceability as check_traceability
    from prepbench.compile import compile_model as compile_model
    from prepbench.compile import prune as prune
    from prepbench.compile import trainable as trainable
    from prepbench.errors import PrepbenchError as PrepbenchError
    from prepbench.errors import PrepbenchWarning as PrepbenchWarning
    from prepbench.fixes import fix as fix
    from prepbench.inputs import Sample as Sample
    from prepbench.jobs import Cancelled as Cancelled
    from prepbench.jobs import Job as Job
    from prepbench.jobs import Progress as Progress
    from prepbench.measure import metrics as metrics
    from prepbench.measure.comparison import Comparison as Comparison
    from prepbench.measure.generation import Generation as Generation
    from prepbench.measure.profile import Profile as Profile
    from prepbench.measure.profile import profile as profile
    from prepbench.measure.run import compare as compare
    from prepbench.package import CompiledModel as CompiledModel
    from prepbench.package import load_compiled as load_compiled
    from prepbench.prepare import PreparationReport as PreparationReport
    from prepbench.prepare import prepare_model as prepare_model
    from prepbench.prepare import validate_model as validate_model
    from prepbench.progress_bar import show_progress as show_progress
    from prepbench.results.results import Results as Results
    from prepbench.results.results import load_results as load_results
    from prepbench.running.recorded_calls import record_inputs as record_inputs
    from prepbench.search.objective import Budget as Budget
    from prepbench.search.search import search as search
    from prepbench.search.search_result import SearchResult as SearchResult
    from prepbench.search.sensitivity import Sensitivity as Sensitivity
    from prepbench.search.sensitivity import sensitivity as sensitivity
    from prepbench.search.sweep import SweepResult as SweepResult
    from prepbench.search.sweep import sweep as sweep
    from prepbench.settings import CompileOptions as CompileOptions
    from prepbench.settings import DeploymentSettings as DeploymentSettings
    from prepbench.settings import EagerDeployment as EagerDeployment
    from prepbench.settings import ExecuTorchDeployment as ExecuTorchDeployment
    from prepbench.settings import InductorDeployment as InductorDeployment
    from prepbench.settings import LayerPruningSettings as LayerPruningSettings
    from prepbench.settings import LayerQuantizationSettings as LayerQuantizationSettings
    from prepbench.settings import LoraSettings as LoraSettings
    from prepbench.settings import OnnxRuntimeDeployment as OnnxRuntimeDeployment
    from prepbench.settings import OpenVinoDeployment as OpenVinoDeployment
    from prepbench.settings import PruningSettings as PruningSettings
    from prepbench.settings import QuantizationSettings as QuantizationSettings
    from prepbench.settings import TensorRtDeployment as TensorRtDeployment
    from prepbench.settings import explain_settings as explain_settings
    from prepbench.views.display import diagram as diagram

_HOME = {
    "Axis": "prepbench.capture.sizes.axis",
    "Bench": "prepbench.bench",
    "Budget": "prepbench.search.objective",
    "Cancelled": "prepbench.jobs",
    "Captured": "prepbench.capture.aten.captured",
    "Comparison": "prepbench.measure.comparison",
    "CompileOptions": "prepbench.settings",
    "CompiledModel": "prepbench.package",
    "DeploymentSettings": "prepbench.settings",
    "DynamicAxes": "prepbench.capture.sizes.dynamic_axes",
    "EagerDeployment": "prepbench.settings",
    "ExecuTorchDeployment": "prepbench.settings",
    "Generation": "prepbench.measure.generation",
    "GraphCollection": "prepbench.capture.modules.collection",
    "InductorDeployment": "prepbench.settings",
    "Job": "prepbench.jobs",
    "KeptStages": "prepbench.compile",
    "LayerPruningSettings": "prepbench.settings",
    "LayerQuantizationSettings": "prepbench.settings",
    "LoraSettings": "prepbench.settings",
    "OnnxRuntimeDeployment": "prepbench.settings",
    "OpenVinoDeployment": "prepbench.settings",
    "PreparationReport": "prepbench.prepare",
    "PrepbenchError": "prepbench.errors",
    "PrepbenchWarning": "prepbench.errors",
    "Profile": "prepbench.measure.profile",
    "Progress": "prepbench.jobs",
    "PruningSettings": "prepbench.settings",
    "QuantizationSettings": "prepbench.settings",
    "Recovery": "prepbench.adapt.recover",
    "Results": "prepbench.results.results",
    "RobustTracer": "prepbench.capture.modules.tracer",
    "Sample": "prepbench.inputs",
    "SearchResult": "prepbench.search.search_result",
    "Sensitivity": "prepbench.search.sensitivity",
    "SweepResult": "prepbench.search.sweep",
    "TensorRtDeployment": "prepbench.settings",
    "TrainableModel": "prepbench.adapt.trainable_model",
    "capture": "prepbench.capture.aten.capture",
    "check_traceability": "prepbench.compile",
    "compare": "prepbench.measure.run",
    "compile_model": "prepbench.compile",
    "diagram": "prepbench.views.display",
    "explain_settings": "prepbench.settings",
    "fix": "prepbench.fixes",
    "load_compiled": "prepbench.package",
    "load_results": "prepbench.results.results",
    "metrics": "prepbench.measure",
    "prepare_model": "prepbench.prepare",
    "profile": "prepbench.measure.profile",
    "record_inputs": "prepbench.running.recorded_calls",
    "prune": "prepbench.compile",
    "recover": "prepbench.adapt.recover",
    "recursive_trace": "prepbench.capture.modules.collection",
    "search": "prepbench.search.search",
    "sensitivity": "prepbench.search.sensitivity",
    "show_progress": "prepbench.progress_bar",
    "static": "prepbench._display",
    "sweep": "prepbench.search.sweep",
    "trainable": "prepbench.compile",
    "validate_model": "prepbench.prepare",
}

__all__ = sorted(_HOME)  # noqa: PLE0605 (the table is the one list of public names)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("prepbench")
    if name not in _HOME:
        raise AttributeError(f"module 'prepbench' has no attribute {name!r}")
    home = importlib.import_module(_HOME[name])
    value = getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{_HOME[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return the place of the built JupyterLab extension for ``jupyter builder develop``."""
    return [{"src": "labextension", "dest": "prepbench-lab"}]
