"""The workbench: one state, the actions on it, and the code that reproduces them."""

from prepbench.bench.bench import Bench as Bench
from prepbench.bench.state import BenchState as BenchState
from prepbench.bench.state import RecoverySettings as RecoverySettings
from prepbench.bench.summary import BenchSummary as BenchSummary

__all__ = ["Bench", "BenchState", "BenchSummary", "RecoverySettings"]
