"""What a compile did, how long each stage took, and what the result weighs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from prepbench._shown import view
from prepbench.quantize import LayerReport


@dataclass(frozen=True)
class CompileReport:
    """The report of one compile.

    Attributes:
        target: name of the target.
        seconds: duration of each stage.
        layers: what became of each layer with a weight; empty when nothing was to be quantized.
        float_bytes: bytes of the original's parameters and buffers.
        size_bytes: bytes of the compiled model on disk; None when it cannot be saved.
        leaves: FQNs of the leaf-wrapped modules.
    """

    target: str
    seconds: Mapping[str, float]
    layers: tuple[LayerReport, ...] = ()
    float_bytes: int = 0
    size_bytes: int | None = None
    leaves: tuple[str, ...] = field(default=())

    def table(self) -> Any:
        """A pandas ``DataFrame`` with a row for each layer."""
        return view("views.tables", "layers_table", self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CompileReport:
        """Read what :meth:`to_dict` wrote."""
        layers = tuple(LayerReport(**row) for row in data["layers"])
        return cls(**{**data, "layers": layers, "leaves": tuple(data["leaves"])})

    def __repr__(self) -> str:
        quantized = [row for row in self.layers if row.quantized]
        size = "not saved" if self.size_bytes is None else f"{self.size_bytes / 1e6:.2f} MB"
        lines = [
            f"CompileReport for {self.target}: {len(quantized)} of {len(self.layers)} layers quantized, {size} "
            f"(float weights {self.float_bytes / 1e6:.2f} MB)",
            "  " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in self.seconds.items()),
        ]
        lines += [f"  leaf-wrapped: {name or 'the model itself'}" for name in self.leaves]
        lines += [f"  {row.fqn}: {row.summary}" for row in self.layers if not row.quantized]
        return "\n".join(lines)
