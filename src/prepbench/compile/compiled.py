"""``CompiledModel``: what ``compile_model`` returns and ``load_compiled`` reads back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from prepbench._shown import view
from prepbench.compile.artifact import folder_bytes, read_manifest, write_folder
from prepbench.compile.calls import CallSpec
from prepbench.compile.report import CompileReport
from prepbench.compile.tensors import check_tensors
from prepbench.document.model import GraphCollectionDocument
from prepbench.errors import ArtifactError, DocumentError, SettingsError, TargetError
from prepbench.settings import DeploymentSettings
from prepbench.targets import Runtime, target_named


class CompiledModel(nn.Module):
    """A model lowered to a target: called like the original, with the same structure of results. For inference only.

    Attributes:
        report: what was done to each layer, stage times, sizes.
        deployment_settings: the settings it was compiled for.

    Example:
        >>> from prepbench import compile_model
        >>> compiled = compile_model(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(1, 4), torch.ones(2, 4)])
        >>> compiled(torch.ones(7, 4)).shape
        torch.Size([7, 2])
    """

    def __init__(
        self,
        runtime: Runtime,
        calls: CallSpec,
        deployment_settings: DeploymentSettings,
        report: CompileReport,
        out_spec: pytree.TreeSpec | None = None,
        document: GraphCollectionDocument | None = None,
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._calls = calls
        self._out_spec = out_spec
        self._document = document
        self.deployment_settings = deployment_settings
        self.report = report
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; raises ``InputError`` when the call is not of the form that was compiled."""
        leaves = self._calls.flatten(args, kwargs)
        check_tensors(leaves, self._calls.tensors, self._calls.paths)
        with torch.no_grad():
            outputs = self._runtime.run(leaves)
        return self._calls.result(outputs, self._out_spec)

    @property
    def target(self) -> str:
        """Name of the target that runs it, e.g. ``"onnxruntime"``."""
        return self.report.target

    @property
    def size_bytes(self) -> int | None:
        """Bytes on disk when saved; None when it cannot be saved."""
        return self.report.size_bytes

    def document(self) -> GraphCollectionDocument:
        """The quantized ATen graph before it was lowered, as plain data: what ``pb.diagram(captured, compiled,
        compare=True)`` puts beside the one in float.

        Raises:
            DocumentError: the model was loaded from a folder, which holds the lowered form only.
        """
        if self._document is None:
            raise DocumentError(
                "A model that was loaded has no graph to show: its folder holds the lowered form only. Take the one "
                "that compile_model returned."
            )
        return self._document

    def diagram(self, *others: Any) -> Any:
        """The live diagram of :meth:`document`, and of further graphs to switch to."""
        return view("views.diagrams", "diagram", self, *others)

    def save(self, folder: str | Path) -> None:
        """Write the model to ``folder``, without pickle, whole or not at all; :func:`load_compiled` reads it in any
        process.

        Raises:
            TargetError: it has leaf-wrapped modules, which live in this process only.
            ArtifactError: the folder holds something else.
        """
        if self.report.leaves:
            names = ", ".join(name or "the model itself" for name in self.report.leaves)
            raise TargetError(
                "A model with leaf-wrapped modules cannot be saved, because they call back into this process's Python: "
                f"{names}. Rewrite these modules so that they can be captured (pb.recursive_trace says why and where), "
                "or keep "
                "compiling the model where it is used."
            )
        manifest = {
            "target": self.target,
            "deployment_settings": self.deployment_settings.to_dict(),
            "calls": self._calls.to_dict(),
            "report": self.report.to_dict(),
        }
        write_folder(Path(folder), manifest, self._runtime.save)

    def export(self, path: str | Path) -> Path:
        """Write the model as one ONNX file with named inputs and dynamic dims.

        Raises:
            SettingsError: it was not compiled for ONNX Runtime.
        """
        path = Path(path)
        with tempfile.TemporaryDirectory() as folder:
            self._runtime.save(Path(folder))
            files = sorted(Path(folder).glob("*.onnx"))
            if not files:
                raise SettingsError(
                    f"A model compiled for {self.target} has no ONNX form. Compile with "
                    "deployment_settings=OnnxRuntimeDeployment() to export one."
                )
            if len(list(Path(folder).iterdir())) > 1:
                raise ArtifactError(
                    "The model's weights do not fit into one ONNX file (2 GB); use save(folder), which keeps "
                    "both files."
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(files[0], path)
        return path

    def extra_repr(self) -> str:
        size = "not saveable" if self.size_bytes is None else f"{self.size_bytes / 1e6:.2f} MB"
        quantized = sum(row.quantized for row in self.report.layers)
        return f"target={self.target}, quantized layers={quantized}, {size}"


def load_compiled(folder: str | Path) -> CompiledModel:
    """Read a model that :meth:`CompiledModel.save` wrote; needs neither the original's class nor its code.

    A model compiled by Inductor is machine code, which loading runs: load only what you trust.

    Raises:
        ArtifactError: the folder is damaged, incomplete, or of a newer major version.
        MissingPackageError: its target's package is not installed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        target = target_named(manifest["target"])
        settings = target.settings_type.from_dict(manifest["deployment_settings"])
        calls, report = CallSpec.from_dict(manifest["calls"]), CompileReport.from_dict(manifest["report"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{folder}: the manifest is damaged ({type(error).__name__}: {error}). Save the model again."
        ) from error
    target.check_available()
    return CompiledModel(target.load(folder, settings), calls, settings, report)


def measured_size(runtime: Runtime) -> int:
    """Bytes that a runtime takes on disk."""
    with tempfile.TemporaryDirectory() as folder:
        runtime.save(Path(folder))
        return folder_bytes(Path(folder))
