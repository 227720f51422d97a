"""``CompiledModel``: what ``compile_model`` returns, and how it is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from prepbench._display import view
from prepbench._torch_compat import pytree
from prepbench.calls.call_spec import CallSpec, outputs_of
from prepbench.calls.checked_conditions import ValueCondition
from prepbench.calls.tensor_specs import failed_call
from prepbench.capture.failures.tensor_conditions import TensorCondition
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError
from prepbench.checks import check_count, check_path, check_progress, check_switch
from prepbench.document.model import Failure, GraphCollectionDocument
from prepbench.errors import ArtifactError, DocumentError, PrepbenchError, SettingsError, TargetError
from prepbench.generate.attached import Notices, attached_forward, model_to_attach
from prepbench.generate.calls import GenerationCalls
from prepbench.generate.transformers_style import (
    NO_CONFIGURATION,
    TRANSFORMERS,
    Configuration,
    check_style,
    export_for_transformers,
)
from prepbench.generate.transformers_style import SECTION as CONFIGURATION
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal, tells_internal_errors
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.package.artifact import write_folder
from prepbench.package.leaves.model_leaves import SECTION, ModelLeaves
from prepbench.package.onnx_file import ExportNames, export_onnx_file
from prepbench.package.report import CompileReport, megabytes
from prepbench.package.variants import SECTION as VARIANTS
from prepbench.package.variants import Variant, export_variants
from prepbench.progress_bar import shows_progress
from prepbench.running.check_inputs import Untraceable
from prepbench.settings import CompileOptions, DeploymentSettings, LayerQuantizationSettings, QuantizationSettings
from prepbench.storage import folder_bytes, temporary_folder, temporary_space
from prepbench.targets import Lowering, Runtime, target_named


@dataclass(frozen=True)
class Origin:
    """The origin of a compiled model; only a model that was compiled in this process has it.

    Attributes:
        lowering: the program and its names, as the target got it.
        quantize: quantizes a model that was compiled in float, with the arguments of
            :meth:`CompiledModel.initialize_algorithms`; None when it is quantized already.
    """

    lowering: Lowering
    quantize: Callable[..., CompiledModel] | None = None


class CompiledModel(Untraceable, nn.Module):
    """A model lowered to a target: called like the original, with the same structure of results. For inference only.

    Several threads may call it at once.

    Attributes:
        report: the outcome for each layer, stage times, sizes.
        deployment_settings: the settings it was compiled for.
        allow_unproven: whether calls that break one of :attr:`conditions`, or those of each variant, are computed;
            False at first.
        variants: the graphs of a model whose samples took both sides of a branch on sizes, in the order in which a call
            looks for one whose conditions it meets; empty where one graph is the model.

    Example:
        >>> compiled = pb.compile_model(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(1, 4), torch.ones(2, 4)])
        >>> compiled(torch.ones(7, 4)).shape
        torch.Size([7, 2])
    """

    def __init__(
        self,
        runtime: Runtime,
        call_spec: CallSpec,
        deployment_settings: DeploymentSettings,
        report: CompileReport,
        out_spec: pytree.TreeSpec | None = None,
        document: GraphCollectionDocument | None = None,
        origin: Origin | None = None,
        leaves: ModelLeaves | None = None,
        configuration: Configuration = NO_CONFIGURATION,
        variants: tuple[Variant, ...] = (),
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._call_spec = call_spec
        self._out_spec = out_spec
        self._document = document
        self._origin = origin
        self._leaves = leaves
        self._configuration = configuration
        self.deployment_settings = deployment_settings
        self.report = report
        self.allow_unproven = False
        self.variants = variants
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Where a leaf returns another structure than on the tracing inputs, the whole call is repeated in Python, if the
        model is there: a loaded one has it if it was handed in.

        Integers that index a table are checked where they are inputs. Other numbers are not looked at: layers with
        8-bit activations make finite numbers of NaN, and a target may give an answer for an index that the model
        computes and that is negative or beyond the end of a table, where PyTorch raises.

        Args:
            args: as of the original.
            kwargs: as of the original.

        Returns:
            What the original returns, in the same structure.

        Raises:
            InputError: the call has another form than the tracing inputs, or fails.
            ConditionError: its sizes or values break one of :attr:`conditions`, or its sizes those of each variant.
            UnknownOutputsError: a leaf returns another structure, and the model is not there.
            Exception: an error of the model itself, in a leaf.
        """
        leaves = self._call_spec.flatten(args, kwargs)
        try:
            outputs = outputs_of(self, leaves)
        except UnknownOutputsError:
            if self._leaves is None or self._leaves.model is None:
                raise
            with torch.no_grad():
                return self._leaves.model(*args, **kwargs)
        except PrepbenchError:
            raise
        except Exception as error:  # each runtime has its own
            raise_if_internal(error, of_libraries=True)
            if self.report.leaves:  # it may be the model's own error
                raise
            raise failed_call(leaves, self._call_spec.tensors, self._call_spec.paths, self.target, error) from error
        return self._call_spec.result(outputs, self._out_spec)

    @property
    def target(self) -> str:
        """The name of its target, e.g. ``"onnxruntime"``."""
        return self.report.target

    @property
    def conditions(self) -> tuple[SizeCondition | ValueCondition | TensorCondition, ...]:
        """The conditions under which the graph equals the model. A call that breaks one is refused.

        Those on sizes come first. Those on values are the graph's assertions, such as the assumptions of a fix. Then
        those on the tensors themselves, where forward asks, for instance, whether one is contiguous.

        For a model with variants, they are the common conditions; each variant has further ones.

        Example:
            >>> [condition.text for condition in compiled.conditions]
            []
        """
        spec = self._call_spec
        return (*spec.conditions, *spec.assertions, *spec.of_tensors)

    @property
    def size_bytes(self) -> int | None:
        """The bytes on disk when saved; None if it cannot be saved."""
        return self.report.size_bytes

    @property
    def needs_model(self) -> tuple[str, ...]:
        """The parts that a loaded copy runs in Python, with their classes: ``load_compiled(folder, model=model)``."""
        return () if self._leaves is None else self._leaves.needs

    def document(self) -> GraphCollectionDocument:
        """Return the quantized ATen graph before lowering as plain data, to show beside the float one:
        ``pb.diagram(captured, compiled, compare=True)``.

        Returns:
            The document of the graph.

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
        """Return the live diagram of :meth:`document`, and of further graphs to switch to.

        Args:
            others: as of :meth:`prepbench.Captured.diagram`.

        Returns:
            The widget.
        """
        return view("views.display", "diagram", self, *others)

    def attached(self, model: nn.Module, *, strict: bool = False) -> AbstractContextManager[None]:
        """Run calls of ``model`` on the compiled model during the block, and so its methods, such as
        ``model.generate(...)``.

        Generation of ``transformers`` goes on as it does in PyTorch: greedy, sampling, beams, streamers. Each step
        runs here, and new keys and values are written into the cache that it hands in. Compile with the cache that
        generation uses (``DynamicCache``), empty in some samples and filled in others. ``model(ids)`` without a cache
        gets an empty one, and with ``labels=`` the loss is computed from the compiled logits, so that tools that
        evaluate a model measure the compiled one.

        What the graph cannot compute runs in PyTorch, and a ``PrepbenchWarning`` says so once for each reason: a first
        step that is another graph (encoders, images, states instead of keys and values: compile these with samples
        of later steps), all logits where the graph gives the last, a loss of another kind, another adapter of PEFT,
        threads that ran before the block. What the model's own forward does not compute stays in PyTorch, too.

        Afterwards, also after an error or Ctrl-C, the model is as it was. Threads that begin inside the block, such as
        those for a ``TextIteratorStreamer``, run compiled too. Blocks may overlap.

        Args:
            model: what was compiled, or a model that is called like it. Its weights count for calls in PyTorch only. Of
                a wrapper of PEFT, ``get_base_model()`` is what to compile, and either may be given here.
            strict: whether a call that would run in PyTorch raises.

        Returns:
            A context manager.

        Raises:
            InputError: the model is called differently; in the block: a call that the graph cannot take as the model
                would, and one that would run in PyTorch if the block is strict or the model has other weights.

        Example:
            >>> with compiled.attached(model):
            ...     tokens = model.generate(prompt, max_new_tokens=16)
        """
        model = model_to_attach(model, self._call_spec.parameters)
        check_switch("strict", strict)
        notices = Notices(strict=strict)
        return attached_forward(model, GenerationCalls(self, self._call_spec, model, notices), notices)

    @tells_internal_errors
    def save(self, folder: str | Path) -> None:
        """Write the model to ``folder``, without pickle, whole or not at all; :func:`prepbench.load_compiled` reads it
        in any process.

        Leaf modules that you chose are written as programs of their own where they can be exported. The code of other
        leaves is not written: the folder says which class each of them needs, with digests of its lines and of the
        model's tensors, and loading takes the model itself, ``load_compiled(folder, model=model)``. ``report.remarks``
        names these leaves.

        Args:
            folder: an earlier model there is replaced once the new one is complete.

        Raises:
            TargetError: a leaf cannot be told in a file, such as one that is called with objects of classes unknown
                there, or the whole model is one leaf; the message names it.
            ArtifactError: the folder holds something else.

        Example:
            >>> compiled = pb.compile_model(partly, tracing_inputs=samples, fullgraph=False)
            >>> compiled.save("model")
            >>> pb.load_compiled("model", model=partly)(x)  # where the class and the checkpoint are
        """
        check_path("folder", folder)
        leaves = self._leaves
        if leaves is not None and leaves.problem:
            raise TargetError(leaves.problem)
        manifest: dict[str, Any] = {
            "target": self.target,
            "deployment_settings": self.deployment_settings.to_dict(),
            "calls": self._call_spec.to_dict(),
            "report": self.report.to_dict(),
            CONFIGURATION: dict(self._configuration),
        }
        if self.variants:
            manifest[VARIANTS] = [{"samples": list(v.samples), "report": v.report.to_dict()} for v in self.variants]
        if leaves is not None:
            manifest[SECTION] = dict(leaves.content)
        write_folder(Path(folder), manifest, partial(write_parts, self._runtime, leaves))

    @shows_progress("quantize")
    def initialize_algorithms(
        self,
        calibration_inputs: Iterable[Any],
        *,
        quantization_settings: QuantizationSettings | None = None,
        layer_quantization_settings: Mapping[str, LayerQuantizationSettings] | None = None,
        deployment_settings: DeploymentSettings | None = None,
        compile_options: CompileOptions | None = None,
        progress: ProgressCallback = report_nothing,
    ) -> CompiledModel:
        """Quantize a model that was compiled in float, in place, without capturing it again.

        Args:
            calibration_inputs: representative samples, in the form of the tracing inputs.
            quantization_settings: how; ``QuantizationSettings()`` when omitted.
            layer_quantization_settings: overrides for layers.
            deployment_settings: another target; the one that it was compiled for when omitted.
            compile_options: the algorithms of quantization; those of the compile when omitted.
            progress: called after each sample; may raise to cancel, which leaves the model in float.

        Returns:
            The model itself.

        Raises:
            SettingsError: it is quantized already, or was loaded from a folder; or as for ``compile_model``.

        Example:
            >>> from prepbench import compile_model
            >>> compiled = compile_model(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(1, 4), torch.ones(2, 4)])
            >>> compiled.initialize_algorithms([torch.randn(8, 4)]).report.layers[0].weights_bits
            8
        """
        check_progress(progress)
        if self._origin is None or self._origin.quantize is None:
            why = "was loaded from a folder" if self._origin is None else "is quantized already"
            raise SettingsError(
                f"This model {why}, so its algorithms cannot be initialized. Compile the original in float "
                "(quantization_settings=None) and call this on the result."
            )
        new = self._origin.quantize(
            progress,
            calibration_inputs=calibration_inputs,
            deployment_settings=self.deployment_settings if deployment_settings is None else deployment_settings,
            quantization_settings=QuantizationSettings() if quantization_settings is None else quantization_settings,
            layer_quantization_settings=layer_quantization_settings,
            compile_options=compile_options,
        )
        self._runtime, self._document, self._origin = new._runtime, new._document, new._origin
        self._leaves, self._call_spec, self.variants = new._leaves, new._call_spec, new.variants
        self.deployment_settings, self.report = new.deployment_settings, new.report
        return self

    def generate_dummy_inputs(self, seed: int = 0) -> Sample:
        """Return made-up inputs with the sizes of a tracing input: noise for floating-point tensors, zeros for
        integers, True for booleans, and the captured values for everything else.

        Args:
            seed: of the noise.

        Returns:
            The arguments of one call.

        Example:
            >>> from prepbench import compile_model
            >>> compiled = compile_model(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(3, 4)])
            >>> dummy = compiled.generate_dummy_inputs()
            >>> compiled(*dummy.args, **dummy.kwargs).shape
            torch.Size([3, 2])
        """
        check_count("seed", seed)
        return self._call_spec.dummy(seed)

    @tells_internal_errors
    def export(
        self,
        path: str | Path,
        *,
        style: str = "onnx",
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
        keep_outputs_at_idx: Sequence[int] | None = None,
    ) -> Path:
        """Write the model as one ONNX file, or as a folder that tools for ``transformers`` read.

        With ``style="transformers"`` the folder holds ``model.onnx`` (ONNX Runtime, with its weights beside it where
        they are large) or ``openvino_model.xml`` and ``.bin`` (OpenVINO) as the model was compiled and quantized, and
        ``config.json`` and ``generation_config.json``. Inputs and outputs have the names that ``ORTModelForCausalLM``
        and ``OVModelForCausalLM`` of ``optimum`` expect: ``input_ids``, ``attention_mask``, ``position_ids``,
        ``past_key_values.N.key``, ``logits``, ``present.N.key``. Beside ``model.onnx`` of a decoder lies
        ``genai_config.json``, with which ONNX Runtime GenAI runs it. Files beside an earlier export, such as those of a
        tokenizer, stay. :attr:`conditions` are in the file's metadata and in ``<file>.conditions.json`` beside it. Of a
        model with variants the file has an ``If`` on the sizes of the inputs, and weights that variants share once.

        Args:
            path: of the file, or of the folder; an old one is replaced once the new one is whole.
            style: ``"onnx"`` for one file, whatever target the model was compiled for, or ``"transformers"``.
            input_names: names for the tensors it takes; those of ``forward``'s parameters when omitted.
            output_names: names for its results; their keys when omitted.
            dynamic_axes: names for dynamic dims by tensor, ``{"ids": {0: "batch"}}``, as for ``torch.onnx.export``.
                The tracing inputs have decided which dims are dynamic; this does not change that.
            keep_outputs_at_idx: indices of the output leaves to keep; all when omitted.

        Returns:
            The path.

        Raises:
            SettingsError: wrong names, dims that are not dynamic, or a model that was loaded for a target that does not
                use ONNX; with ``style="transformers"``, a model without a configuration, or with an input or output
                that has no name there.
            TargetError: an operator has no ONNX equivalent; with ``style="transformers"``, another target.
            ArtifactError: the model does not fit into one file (2 GB), the folder holds something else, or the disk is
                full.

        Example:
            >>> compiled.export("model.onnx", input_names=["image"])
            >>> compiled.export("llama-int4", style="transformers")
        """
        check_path("path", path)
        if check_style(style, input_names, output_names, dynamic_axes, keep_outputs_at_idx) == TRANSFORMERS:
            if self.variants:
                raise SettingsError(
                    "style='transformers' writes one graph, and this model has variants. Write export(path) without a "
                    "style, or compile with tracing inputs that take one side of the branch."
                )
            parts = (self._runtime, self._call_spec, self._configuration, self.report.leaves)
            return export_for_transformers(Path(path), target_named(self.target), *parts)
        wanted = ExportNames(input_names, output_names, dynamic_axes, keep_outputs_at_idx)
        if self.variants:
            return export_variants(Path(path), wanted, self.variants, self._runtime, self._call_spec, self.target)
        source = self._origin.lowering if self._origin is not None else None
        return export_onnx_file(Path(path), wanted, source, self._runtime, self._call_spec, self.report)

    def extra_repr(self) -> str:
        size = "not saveable" if self.size_bytes is None else megabytes(self.size_bytes)
        quantized = sum(row.quantized for row in self.report.layers)
        where = [f"holds where {line}" for line in self.report.conditions]
        where += [f"variant {index}: {variant}" for index, variant in enumerate(self.variants)]
        return "\n".join([f"target={self.target}, quantized layers={quantized}, {size}", *where])


def what_runs(candidate: Any) -> Any:
    """Return the model in Python that stands behind an :class:`UncompiledModel`; other candidates as they are."""
    return candidate._python[0] if isinstance(candidate, UncompiledModel) else candidate


def lowering_of_compiled(compiled: CompiledModel) -> Lowering | None:
    """Return the program that the target received, with its names; None for a loaded model."""
    return None if compiled._origin is None else compiled._origin.lowering


def program_of(compiled: CompiledModel) -> torch.export.ExportedProgram | None:
    """Return the program that the target received; None for a loaded model, or if nothing is compiled."""
    lowering = lowering_of_compiled(compiled)
    return None if lowering is None else lowering.program


# The files of a compiled model: those of its runtime, and those of its leaves.


def write_parts(runtime: Runtime, leaves: ModelLeaves | None, folder: Path) -> None:
    """Write a runtime, and the leaves that are programs themselves."""
    runtime.save(folder)
    if leaves is not None:
        leaves.save(folder)


def measured_size(runtime: Runtime, leaves: ModelLeaves | None = None) -> int | None:
    """Return the bytes of a runtime and its leaves on disk; None if they cannot be saved."""
    with temporary_space(), temporary_folder("size") as folder:
        try:
            write_parts(runtime, leaves, folder)
        except (ArtifactError, TargetError):
            return None
        return folder_bytes(folder)


class NothingCompiledError(SettingsError):
    """Raised if layers are to be quantized, and the whole model is one leaf module."""

    def __init__(self, text: str, why: Failure) -> None:
        super().__init__(text)
        self.failures = (why,)


class UncompiledModel(CompiledModel):
    """The whole model as one leaf module, with the results and the speed of eager mode.

    Args:
        model: runs, in the mode it is in.
        sample: a call that it takes.
        deployment_settings: the intended target.
        report: says why nothing is compiled.
    """

    def __init__(
        self, model: nn.Module, sample: Sample, deployment_settings: DeploymentSettings, report: CompileReport
    ) -> None:
        nn.Module.__init__(self)
        self._python = (model,)  # in a tuple, because its parameters are not those of this module
        self._sample = sample
        # there is no runtime and no call specification: each method that needs one is overridden here
        self._document = self._origin = self._leaves = None
        self.deployment_settings = deployment_settings
        self.report = report
        self.allow_unproven = False
        self.variants = ()
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        with torch.no_grad():
            return self._python[0](*args, **kwargs)

    @property
    def conditions(self) -> tuple[()]:
        """None: Python takes every call that the model takes."""
        return ()

    @property
    def needs_model(self) -> tuple[str, ...]:
        """The whole model; but it cannot be saved."""
        return ("the model itself",)

    def document(self) -> NoReturn:
        """Raise ``DocumentError``: there is no graph."""
        raise DocumentError(f"{self._why()} pb.recursive_trace(model, inputs=...) shows the graphs of its parts.")

    def attached(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``SettingsError``: calls of the model would run in Python as they do without it."""
        raise SettingsError(f"There is nothing to attach. {self._why()} Rewrite the line that is named there.")

    def initialize_algorithms(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``SettingsError``: there is no layer that could be quantized."""
        raise SettingsError(f"{self._why()} Rewrite the line that is named there, then compile again.")

    def generate_dummy_inputs(self, seed: int = 0) -> Sample:
        """Return its tracing sample."""
        return self._sample

    def save(self, folder: Any) -> NoReturn:
        """Raise ``TargetError``: its code lives in this process only."""
        raise TargetError(
            f"It cannot be saved. {self._why()} Rewrite the line that is named there, then compile again."
        )

    def export(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``TargetError``: it has no ONNX form."""
        raise TargetError(f"It has no ONNX form. {self._why()} Rewrite the line that is named there.")

    def _why(self) -> str:
        why = self.report.remarks[0]
        return f"{why[0].upper()}{why[1:]}."
