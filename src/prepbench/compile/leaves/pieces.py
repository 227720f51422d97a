"""Leaves that export on their own: a saved model has their programs and needs none of their Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.programs import flat_program
from prepbench.capture.aten.capture import capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.chosen_leaves import CHOSEN
from prepbench.capture.aten.leaf_operators import LeafDefinition
from prepbench.capture.aten.leaf_outputs import LeafOutputs
from prepbench.capture.sizes.learned_outputs import LearnedOutputs
from prepbench.capture.sizes.resizing import varied
from prepbench.errors import PrepbenchError
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.interrupts import interruptible
from prepbench.running.recorded_calls import RecordedCall
from prepbench.running.replaced_forward import replaced_forward
from prepbench.running.unchanged import own_copy, unchanged
from prepbench.targets import Runtime
from prepbench.targets.base import Lowering
from prepbench.targets.partitioned_runtime import FALLBACK
from prepbench.targets.programs import is_repeatable

_MOST_SAMPLES = 12


def exported_piece(captured: Captured, made: LeafDefinition) -> Runtime | None:
    """Return a user-chosen leaf as a program; None if it does not export.

    Args:
        captured: the model, whose samples show how the leaf is called.
        made: the leaf's operator.
    """
    chosen = any(leaf.fqn == made.fqn and leaf.kind == CHOSEN for leaf in captured.leaves)
    call = made.outputs.learned.variants[0].calls[0]
    only_tensors = all(kind in ("", "Tensor") for kind in made.signature.kinds)
    if not chosen or not only_tensors or call.restructured or call.changed or made.outputs.learned.variants[0].unknown:
        return None
    module = captured.model.get_submodule(made.fqn)
    samples = [sample for sample in _recorded(captured, made.fqn) if _is_such(sample, made)][:_MOST_SAMPLES]
    if not samples:
        return None
    try:
        program = capture(module, [(*sample.args, sample.kwargs) for sample in samples]).program
    except (PrepbenchError, RuntimeError, ValueError, TypeError):
        return None
    if not is_repeatable(program) or program.call_spec.out_spec.num_leaves != len(call.outputs):
        return None
    names = tuple(f"x{index}" for index in range(len(made.signature.kinds)))
    flat = flat_program(program, names)
    results = tuple(f"y{index}" for index in range(len(call.outputs)))
    return FALLBACK.lower(Lowering(flat, names, results, {}), FALLBACK.settings_type())


def flattened(made: LeafDefinition) -> LeafDefinition:
    """Return the operator of a program that takes leaves and returns leaves."""
    (variant,) = made.outputs.learned.variants
    spec = pytree.tree_structure(((0,) * len(made.signature.kinds), {}))
    output_spec = pytree.tree_structure((0,) * len(variant.calls[0].outputs))
    calls = tuple(_flat(call, spec, output_spec) for call in variant.calls)
    outputs = LearnedOutputs(made.outputs.name, (replace(variant, calls=calls),))
    return replace(made, signature=replace(made.signature, spec=spec), outputs=LeafOutputs(made.outputs.name, outputs))


def _flat(call: RecordedCall, spec: Any, output_spec: Any) -> RecordedCall:
    return replace(call, input_spec=spec, output_spec=output_spec)


def running(runtime: Runtime) -> Callable[..., Any]:
    """Return the callable that runs a piece."""

    def run(*leaves: Any) -> Any:
        return tuple(runtime.run(leaves))

    return run


def _recorded(captured: Captured, fqn: str) -> list[Sample]:
    """Return the calls of a module on the samples and on samples of other sizes, with their data."""
    found: list[Sample] = []
    module: Any = captured.model.get_submodule(fqn)
    forward = module.forward

    def listen(*args: Any, **kwargs: Any) -> Any:
        found.append(own_copy(Sample(args, kwargs, len(found))))
        return forward(*args, **kwargs)

    listen.__wrapped__ = forward  # type: ignore[attr-defined]
    further = varied(captured.model, captured.samples, captured.axes)
    for sample in [*captured.samples, *further]:
        before = len(found)
        try:
            with unchanged(captured.model), torch.no_grad(), replaced_forward(captured.model, fqn, listen):
                with interruptible():
                    own_copy(sample).call(captured.model)
        except PrepbenchError:
            raise
        except Exception as error:  # the model rejects this made-up size
            raise_if_internal(error)
            del found[before:]
    return found


def _is_such(sample: Sample, made: LeafDefinition) -> bool:
    """Return whether the operator stands for a call."""
    leaves, spec = pytree.tree_flatten((sample.args, sample.kwargs))
    tensors: Sequence[bool] = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    repeats = {index for index, _ in made.signature.repeats}
    wanted = [kind == "Tensor" or index in repeats for index, kind in enumerate(made.signature.kinds)]
    return bool(spec == made.signature.spec) and list(tensors) == wanted
