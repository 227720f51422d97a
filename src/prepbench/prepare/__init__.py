"""Preparation: a model in which each operation is a module of its own, equal to the original."""

from prepbench.prepare.model import PreparedModel
from prepbench.prepare.passes import (
    decompose_activations_,
    equalize_,
    fold_batch_norm_,
    operations_to_modules_,
    remove_identity_,
    unroll_reused_,
)
from prepbench.prepare.pipeline import prepare_model, run_passes
from prepbench.prepare.report import PreparationReport

__all__ = [
    "PreparationReport",
    "PreparedModel",
    "decompose_activations_",
    "equalize_",
    "fold_batch_norm_",
    "operations_to_modules_",
    "prepare_model",
    "remove_identity_",
    "run_passes",
    "unroll_reused_",
]
