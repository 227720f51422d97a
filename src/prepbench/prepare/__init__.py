"""Preparation: an equivalent model in which each operation is a module."""

from prepbench.prepare.model import BeforeAfter, PreparedModel, before_and_after
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
from prepbench.prepare.validate import ValidationReport, validate_model

__all__ = [
    "BeforeAfter",
    "PreparationReport",
    "PreparedModel",
    "ValidationReport",
    "before_and_after",
    "decompose_activations_",
    "equalize_",
    "fold_batch_norm_",
    "operations_to_modules_",
    "prepare_model",
    "remove_identity_",
    "run_passes",
    "unroll_reused_",
    "validate_model",
]
