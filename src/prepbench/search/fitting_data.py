"""Check early that the data has the sizes that the model is captured with."""

from __future__ import annotations

from collections.abc import Iterable

from prepbench.compile.simulation import Simulation
from prepbench.errors import InputError
from prepbench.measure.batches import Batch


def check_data(simulation: Simulation, batches: Iterable[Batch]) -> None:
    """Raise ``InputError`` for the first batch that the captured model does not take.

    Args:
        simulation: of the model.
        batches: the data, read once.
    """
    calls = simulation.source.call_spec
    for batch in batches:
        sample = batch.sample
        try:
            calls.checked(calls.flatten(sample.args, sample.kwargs))
        except InputError as error:
            where = f"data[{sample.index}]"
            raise InputError(
                f"{where} does not fit the captured model: {error} Here such samples are "
                f"tracing_inputs=[calibration_inputs[0], ...], with the input of {where} at the dots. Or leave such "
                "batches out: a last batch that is smaller, with drop_last=True of a DataLoader."
            ) from error
