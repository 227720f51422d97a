"""What was captured of a bench's model: its graphs as it is and with fixes, and the verification of its axes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from prepbench.bench.state import BenchState
from prepbench.capture.aten.capture import capture
from prepbench.capture.aten.verification import AxesReport
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import described
from prepbench.errors import SettingsError
from prepbench.fixes import Rewrite, proposed_rewrites
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.running.twin import Twin


class Captures:
    """The graphs of one model by the fixes that are applied; made when they are asked for, and kept.

    Args:
        model: the model; never changed.
        samples: what it is traced with.
    """

    def __init__(self, model: nn.Module, samples: Sequence[Sample]) -> None:
        self._model = model
        self._samples = list(samples)
        self._collections: dict[tuple[str, ...], GraphCollection] = {}
        self._models: dict[tuple[str, ...], nn.Module] = {(): model}
        self._rewrites: dict[str, Rewrite] | None = None
        self._verified: tuple[DynamicAxes, AxesReport] | None = None
        self.proofs: dict[str, str] = {}

    def collection(self, fixes: tuple[str, ...] = ()) -> GraphCollection:
        """The graphs of the model with these fixes."""
        if fixes not in self._collections:
            self._collections[fixes] = recursive_trace(self.model(fixes), inputs=self._samples)
        return self._collections[fixes]

    def model(self, fixes: tuple[str, ...]) -> nn.Module:
        """The model itself, or a twin around the same tensors with the fixes applied."""
        if fixes not in self._models:
            fixed = Twin(self._model).model
            for fqn in fixes:
                self._rewrite(fqn).apply(fixed)
            self._models[fixes] = fixed
        return self._models[fixes]

    @property
    def rewrites(self) -> dict[str, Rewrite]:
        """The proposed rewrites by the FQN of the failure."""
        if self._rewrites is None:
            failures = self.collection().failures
            found = proposed_rewrites(self._model, self._samples, failures) if failures else ()
            self._rewrites = {rewrite.fqn: rewrite for rewrite in found}
        return self._rewrites

    def check_fix(self, fqn: str) -> None:
        """Prove a rewrite on the samples, once.

        Raises:
            SettingsError: nothing was proposed, or the rewritten module computes something else.
        """
        rewrite = self._rewrite(fqn)
        if fqn in self.proofs:
            return
        result = rewrite.verify(self._model, self._samples)
        if not result.passed:
            raise SettingsError(
                f"The rewrite of {fqn or 'the model'} is not proven, so it was not applied:\n{result!r}\nGive samples "
                "that take both sides of each condition, or keep the module as a leaf."
            )
        sides = len(result.branches)
        self.proofs[fqn] = f"✓ equal to the original on {sides} side{'s' * (sides != 1)} of its conditions"

    def capture(self, state: BenchState, progress: ProgressCallback) -> None:
        """Trace again, capture with the choices, and verify the axes."""
        self._collections.pop(state.fixes, None)
        self._rewrites = self._rewrites if state.fixes else None
        progress(Progress("capture", 0, 3))
        self.collection(state.fixes)
        progress(Progress("capture", 1, 3))
        captured = capture(
            self.model(state.fixes),
            self._samples,
            dynamic_axes=state.axes,
            fullgraph=state.fullgraph,
            leaf_modules=state.leaves,
        )
        progress(Progress("capture", 2, 3, "verify the axes"))
        self._verified = state.axes, captured.verify()
        progress(Progress("capture", 3, 3))

    def verified(self, axes: DynamicAxes) -> AxesReport | None:
        """What was verified of these axes; None where they were not."""
        return self._verified[1] if self._verified is not None and self._verified[0] == axes else None

    def _rewrite(self, fqn: str) -> Rewrite:
        rewrite = self.rewrites.get(fqn) if isinstance(fqn, str) else None
        if rewrite is None or not rewrite.diff:
            known = ", ".join(repr(name) for name, each in self.rewrites.items() if each.diff) or "none"
            why = f": {rewrite.reason}" if rewrite is not None else ""
            raise SettingsError(f"fqn: there is no rewrite to apply for {described(fqn)}{why}. Give one of: {known}.")
        return rewrite
