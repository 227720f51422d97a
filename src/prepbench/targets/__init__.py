"""Deployment targets, one folder each behind one interface; looked up by the type of their settings or by name."""

from prepbench.targets.base import EndNames as EndNames
from prepbench.targets.base import Lowering as Lowering
from prepbench.targets.base import Runtime as Runtime
from prepbench.targets.base import Target as Target
from prepbench.targets.registry import TARGETS as TARGETS
from prepbench.targets.registry import target_for as target_for
from prepbench.targets.registry import target_named as target_named

__all__ = ["TARGETS", "EndNames", "Lowering", "Runtime", "Target", "target_for", "target_named"]
