"""``Rewrite``: a changed ``forward`` for one class, as a diff that can be verified and applied."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from prepbench.capture.failures.reproduce import received_inputs
from prepbench.checks import described
from prepbench.document.model import SourceLine
from prepbench.errors import InputError
from prepbench.fixes.function_source import FunctionSource, Place
from prepbench.fixes.kinds.kind import RewriteKind
from prepbench.fixes.results import CannotRewrite, RewriteResult
from prepbench.fixes.verification import verify_cases
from prepbench.inputs import normalize_samples


@dataclass(frozen=True)
class Rewrite:
    """A proposed ``forward`` for one class.

    Attributes:
        fqn: the first module that has this forward.
        module_type: its class.
        source: where the function starts.
        diff: a unified diff; empty when nothing can be proposed.
        code: the whole rewritten function.
        reason: why nothing is proposed.
        kind: what the change does, e.g. ``"a branch on a tensor becomes torch.where"``.
        right_if: what must hold for the change to be right; :meth:`verify` checks it on samples.
    """

    fqn: str
    module_type: str
    source: SourceLine | None
    diff: str = ""
    code: str = ""
    reason: str = ""
    kind: str = ""
    right_if: str = ""
    _function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    _kind: RewriteKind | None = field(default=None, compare=False, repr=False)
    _places: tuple[Place, ...] = field(default=(), compare=False, repr=False)

    def verify(self, model: torch.nn.Module, inputs: Any) -> RewriteResult:
        """Run the module with its own and with the rewritten forward until both sides of each condition were taken.

        It runs on what the module receives on the samples. To reach both sides it also negates, scales and shuffles
        these values, and replaces them with zeros, ones and NaN. The model is left as it was.

        Args:
            model: the model that the rewrite was proposed for.
            inputs: sample inputs.

        Raises:
            CannotRewrite: nothing was proposed.
            InputError: it is not the model.
        """
        function, module = self._proposed(), self._module_of(model)
        assert self._kind is not None
        received = received_inputs(model, module, normalize_samples(model, inputs))
        return verify_cases(self._kind, FunctionSource.of(module.forward), function, self._places, module, received)

    def apply(self, model: torch.nn.Module) -> None:
        """Give every module of this class in ``model`` the rewritten forward; the class itself stays as it is.

        Raises:
            CannotRewrite: nothing was proposed.
            InputError: it is not the model.
        """
        function, kind = self._proposed(), type(self._module_of(model))
        for module in model.modules():
            if type(module) is kind:
                module.forward = types.MethodType(function, module)

    def _module_of(self, model: torch.nn.Module) -> torch.nn.Module:
        found = dict(model.named_modules(remove_duplicate=False)) if isinstance(model, torch.nn.Module) else {}
        if self.fqn not in found:
            raise InputError(
                f"model must be the module that this rewrite of {self.fqn or 'its forward'!r} was proposed for, got "
                f"{described(model)}. Give the one that check_traceability was called with."
            )
        module: torch.nn.Module = found[self.fqn]
        return module

    def _proposed(self) -> Callable[..., Any]:
        if self._function is None:
            raise CannotRewrite(f"Nothing was proposed for {self.fqn or 'the model'}: {self.reason}")
        return self._function

    def __repr__(self) -> str:
        name = f"{self.fqn or 'the model'} ({self.module_type})"
        return f"Rewrite of {name}\n{self.diff}" if self.diff else f"No rewrite of {name}: {self.reason}"
