"""The passes of preparation, one per file.

A pass changes a :class:`~prepbench.prepare.model.PreparedModel` in place and returns what it did;
:func:`prepbench.prepare.run_passes` applies passes to a copy, checks the graph after each and compares outputs.
"""

from prepbench.prepare.passes.complete_signature import complete_signature_
from prepbench.prepare.passes.equalize import equalize_
from prepbench.prepare.passes.fold_batch_norm import fold_batch_norm_
from prepbench.prepare.passes.operations_to_modules import (
    decompose_activations_,
    operations_to_modules_,
    remove_identity_,
)
from prepbench.prepare.passes.unroll_reused import unroll_reused_

__all__ = [
    "complete_signature_",
    "decompose_activations_",
    "equalize_",
    "fold_batch_norm_",
    "operations_to_modules_",
    "remove_identity_",
    "unroll_reused_",
]
