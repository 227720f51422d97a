"""A compile task: a captured model, and how to compile it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from prepbench._torch_compat.programs import flat_program, with_first_names, with_outputs, with_own_weights
from prepbench.adapt.prune import PrunedLayer
from prepbench.adapt.trainable_model import TrainableModel
from prepbench.calls.call_spec import CallSpec
from prepbench.calls.variant_calls import VariantCall, VariantChoice
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.computed_in_float32 import HALF_TYPES, computed_in_float32
from prepbench.capture.sizes.recurrent import layers_of_torch
from prepbench.errors import ConditionError
from prepbench.generate.transformers_style import Configuration
from prepbench.inputs import Sample
from prepbench.objects.restore import state_bytes
from prepbench.quantize import weights_to_cast
from prepbench.settings import CompileOptions, DeploymentSettings, ExplainedLayer
from prepbench.targets import Target
from prepbench.targets.decompose import decompose, grouped_products, recurrent_cells


@dataclass(frozen=True)
class CompileTask:
    """A captured model, and how to compile it.

    Attributes:
        target: the target that the model will run on.
        settings: the settings of the target.
        options: algorithms and floors.
        captured: the model as a graph.
        call_spec: the specification of the model's calls.
        program: the flat program, in float.
        name: the name of the graph.
        layer_settings: the settings that apply to each layer; None for a compile in float.
        calibration: the calibration inputs.
        is_pretrained: whether the weights are trained, so that measuring the noise of layers makes sense.
        fullgraph: whether the target must take the whole graph.
        data_transform_fn: applied to samples that are given later.
        configuration: the model's own files that go with its weights.
        pruned: the effect of pruning, by layer; ``captured.model`` then has the weights that are left, for counting.
        dense_bytes: bytes of parameters and buffers before pruning; None where nothing was pruned.
        unpruned: the program before pruning, where the report tells the distance from it; else None.
        remarks: earlier changes of the model, in words.
        trained: the model that learned what its quantizers are in training; None where observers are to learn it.
        variants: a task for each variant of the capture; see :meth:`of_variants`.
    """

    target: Target
    settings: DeploymentSettings
    options: CompileOptions
    captured: Captured
    call_spec: CallSpec
    program: torch.export.ExportedProgram
    name: str
    layer_settings: tuple[ExplainedLayer, ...] | None = None
    calibration: tuple[Sample, ...] = ()
    is_pretrained: bool = True
    fullgraph: bool = True
    data_transform_fn: Callable[[Any], Any] | None = None
    configuration: Configuration = field(default_factory=dict)
    pruned: tuple[PrunedLayer, ...] = ()
    dense_bytes: int | None = None
    unpruned: torch.export.ExportedProgram | None = None
    remarks: tuple[str, ...] = ()
    trained: TrainableModel | None = None
    variants: tuple[CompileTask, ...] = ()

    @classmethod
    def of(
        cls,
        target: Target,
        settings: DeploymentSettings,
        options: CompileOptions,
        name: str,
        function: Callable[..., Any],
        captured: Captured,
        *,
        own_weights: bool,
        copies: dict[int, Any] | None = None,
    ) -> CompileTask:
        """Return a task to compile in float, on the model's tensors or on copies of them, which variants share."""
        assert captured.program.example_inputs is not None
        args, kwargs = captured.program.example_inputs
        sample = Sample(tuple(args), dict(kwargs), counted=captured.samples[0].counted)
        call_spec = CallSpec.of(function, sample, captured.program)
        program = flatten(captured, call_spec)
        copies = {} if copies is None else copies
        program = with_own_weights(program, copies) if own_weights else program
        variants = [
            cls.of(target, settings, options, name, function, variant, own_weights=own_weights, copies=copies)
            for variant in captured.variants
        ]
        return cls(target, settings, options, captured, call_spec, program, name, variants=tuple(variants))

    def of_variants(self) -> Iterator[CompileTask]:
        """Yield this task for each variant, with the calibration inputs that meet its conditions."""
        conditions = [variant.captured.conditions for variant in self.variants]
        choice = VariantChoice([VariantCall(some, ()) for some in conditions], ())
        routed: dict[int, list[Sample]] = {}
        for sample in self.calibration:
            leaves = self.call_spec.flatten(sample.args, sample.kwargs)
            try:
                choice.check(leaves)
            except ConditionError as error:
                raise ConditionError(f"calibration_inputs[{sample.index}]: {error}") from error
            routed.setdefault(choice.find(leaves) or 0, []).append(sample)
        for index, variant in enumerate(self.variants):
            found, remarks = routed.get(index, []), self.remarks
            if self.layer_settings is not None and not found:
                found = list(variant.captured.samples)
                told = ", ".join(f"tracing_inputs[{sample.index}]" for sample in found)
                remarks = (*remarks, f"variant {index} was calibrated on {told}: no calibration input is for it")
            asked = {"of_tensors": self.call_spec.of_tensors, "ordered": self.call_spec.ordered}
            call_spec = replace(variant.call_spec, **asked)  # type: ignore[arg-type]
            own = {"captured": variant.captured, "call_spec": call_spec, "program": variant.program}
            yield replace(self, **own, variants=(), calibration=tuple(found), remarks=remarks)  # type: ignore[arg-type]

    @property
    def float_bytes(self) -> int:
        """The bytes of parameters and buffers of the user's model."""
        return state_bytes(self.captured.model) if self.dense_bytes is None else self.dense_bytes

    def in_types_of_target(self) -> CompileTask:
        """Return the task with a program in types that the target supports.

        Quantization measures in float32, and layers that stay in float stay in float32, which all CPUs compute well.
        Their weights keep their type until they are quantized, and are cast one by one where the graph runs.
        """
        if self.layer_settings is None:
            program = self._with_recurrent_layers(self.program)
            program = computed_in_float32(program, self.target.types_to_replace(program))
        else:
            program = computed_in_float32(self.program, HALF_TYPES, self.weights_cast_later)
            # grouped products become one product with all matrices, whose rows have separate scales
            program = decompose(program, {**grouped_products(program), **recurrent_cells()})
            program = self._with_recurrent_layers(program)
        return replace(self, program=program)

    def _with_recurrent_layers(self, program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
        """Return a program whose recurrent modules are an operator per layer, if the target has one."""
        return decompose(program, layers_of_torch()) if self.target.runs_recurrent_layers else program

    @property
    def weights_cast_later(self) -> Collection[str]:
        """The placeholders of half-precision weights that stay so until their layers are quantized."""
        changes_weights = self.options.smooth_quant or self.options.cross_layer_equalization
        return () if changes_weights or self.layer_settings is None else weights_to_cast(self.program)


def flatten(captured: Captured, call_spec: CallSpec) -> torch.export.ExportedProgram:
    """Return the captured program from leaves to leaves, without constant outputs.

    A module under several names has the first one in it, as in ``named_modules()``: it is one layer.
    """
    program = with_first_names(captured.program, other_names(captured.model))
    program = flat_program(program, call_spec.input_names)
    places = [i for i in range(len(program.graph_signature.user_outputs)) if i not in call_spec.output_constants]
    return with_outputs(program, places) if call_spec.output_constants else program


def other_names(model: torch.nn.Module) -> dict[str, str]:
    """Return the first name of each module that has several, by its other names.

    Example:
        >>> layer = torch.nn.Linear(2, 2)
        >>> other_names(torch.nn.Sequential(layer, torch.nn.ReLU(), layer))
        {'2': '0'}
    """
    first = {id(module): name for name, module in model.named_modules()}
    named = ((name, first[id(module)]) for name, module in model.named_modules(remove_duplicate=False))
    return {name: own for name, own in named if own != name}
