"""Normalize samples to one pytree structure, also where caches are empty in some, and find numbers that follow from
sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from prepbench.inputs import Sample, arguments_by_name, normalize_samples
from prepbench.running.counted_numbers import counted_numbers
from prepbench.running.empty_caches import with_empty_caches_filled


def alike_samples(function: Callable[..., Any], samples: Any, **reading: Any) -> list[Sample]:
    """Return :func:`prepbench.inputs.normalize_samples`, with empty caches in the structure of the filled ones.

    Each sample lists the numbers in objects that follow from sizes (:attr:`prepbench.Sample.counted`).

    Args:
        function: the callee.
        samples: in any form that it takes.
        reading: its further arguments.

    Raises:
        InputError: no samples, or a sample that does not fit the signature.

    Example:
        >>> [sample.index for sample in alike_samples(torch.nn.Linear(4, 2), [torch.ones(1, 4), torch.ones(3, 4)])]
        [0, 1]
    """
    given = normalize_samples(function, samples, **reading)
    calls = with_empty_caches_filled([(sample.args, sample.kwargs) for sample in given])
    counted = counted_numbers([arguments_by_name(function, *call) for call in calls])
    made = zip(given, calls, strict=True)
    return [replace(sample, args=args, kwargs=kwargs, counted=counted) for sample, (args, kwargs) in made]
