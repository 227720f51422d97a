"""The passes of preparation.

A pass changes a :class:`~prepbench.prepare.model.PreparedModel` in place and returns what it did;
:func:`prepbench.prepare.run_passes` applies passes to a copy, checks the graph after each and compares outputs.
"""

from prepbench.prepare.passes.complete_signature import complete_signature_
from prepbench.prepare.passes.operations_to_modules import (
    decompose_activations_,
    operations_to_modules_,
    remove_identity_,
    unroll_reused_,
)
from prepbench.prepare.passes.weights import equalize_, fold_batch_norm_

__all__ = [
    "complete_signature_",
    "decompose_activations_",
    "equalize_",
    "fold_batch_norm_",
    "operations_to_modules_",
    "remove_identity_",
    "unroll_reused_",
]
