"""The report of a compile: the outcome for each layer, seconds of each stage, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from prepbench._display import view
from prepbench.adapt.prune import PrunedLayer
from prepbench.checks import described
from prepbench.document.model import Failure
from prepbench.errors import SettingsError
from prepbench.quantize import LayerReport, TensorReport
from prepbench.quantize.accounting import totals
from prepbench.quantize.conversion import Stored
from prepbench.quantize.report import QUANTIZED

# The stored bits of weights, read from the lowered program.


def with_stored_bits(
    layers: Iterable[LayerReport], stored: Mapping[str, Stored], bits: Mapping[str, int]
) -> tuple[LayerReport, ...]:
    """Return the reports of layers with their stored bits per weight.

    Args:
        layers: the reports.
        stored: the constants that hold integers, by the names that the program has for them.
        bits: the stored bits of each constant of the lowered program; the names begin as in the program.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, taken in bits.items():
        known = _integers_of(name, stored)
        if known is None:
            continue
        for fqn in stored[known].layers:
            total, elements = found.get(fqn, (0, 0))
            found[fqn] = total + taken, elements + stored[known].elements
    return tuple(
        replace(row, stored_bits=round(found[row.fqn][0] / found[row.fqn][1], 2)) if row.fqn in found else row
        for row in layers
    )


def bits_per_weight(tensors: Iterable[TensorReport], bits: Mapping[str, int], size: int | None) -> float | None:
    """Return the stored bits per number of the model's parameters and buffers, including scales and zero points.

    Args:
        tensors: the tensors of the model.
        bits: the stored bits of each constant of the lowered program; empty where it is opaque.
        size: of the files, which counts there.
    """
    elements = sum(row.elements for row in tensors if row.kind != "constant")
    total = sum(bits.values()) if bits else None if size is None else 8 * size
    return None if total is None or not elements else round(total / elements, 2)


def _integers_of(name: str, stored: Mapping[str, Stored]) -> str | None:
    """Return the name in the program of a constant's integers, unpacked or packed."""
    while name not in stored:
        shorter = re.sub(r"(_packed|_table)?_*$", "", name)
        if shorter == name:
            return None
        name = shorter
    return name


_PATTERNS = 6
"""The most patterns of names in a line of the report."""

_SHOWN = 1.0
"""The least dB between a simulation and the lowered program that the text tells."""

_LARGE = 1024
"""Elements from which on a tensor that is in no layer has a line in the text."""


@dataclass(frozen=True)
class CompileReport:
    """The report of one compile.

    Attributes:
        target: name of the target.
        seconds: duration of each stage.
        layers: the outcome for each layer with a weight; empty for a compile in float.
        float_bytes: bytes of the original's parameters and buffers.
        size_bytes: bytes of the compiled model on disk; None when it cannot be saved.
        leaves: what was not captured: FQNs of leaf modules, and lines of modules in words.
        fallbacks: the operators that PyTorch runs, because the target does not support them; with their modules.
        name: the name of the graph.
        model_sqnr: SQNR of the worst of the compiled model's outputs in dB, against float, on those calibration samples
            that ``measured_on`` names; None when nothing was quantized or measured. Of a pruned model against the
            pruned one in float, as are all distances but ``unpruned_sqnr``.
        simulated_sqnr: the same as it was simulated before lowering, which is what floors are held to.
        measured_on: which rows of the calibration samples ``model_sqnr``, ``output_sqnrs`` and ``model_divergence``
            were measured on, in words. ``in simulation`` stands there where the compiled model was not run: it keeps
            state, draws random numbers, refuses one of these samples, chooses rows by their numbers, or returns
            256 MB and more there.
        unpruned_sqnr: SQNR of the worst output against the float model before pruning, on the same rows: what pruning
            and quantization cost together. None where nothing was pruned, and where the compiled model was not run.
        model_divergence: Kullback-Leibler divergence of the distributions that a language model predicts from those in
            float, in nats for each token of the calibration samples; None where there are none.
        dry_run: whether this is only a plan.
        estimated_bytes: for a plan, the size that the weights would take.
        unsupported: for a plan, what the target does not support, with the module that it is in.
        problem: for a plan, why nothing can be quantized with these settings.
        remarks: facts on all quantized layers, such as a bit that is left unused because of the CPU.
        reused: the results reused from an earlier compile, by stage; see :class:`prepbench.KeptStages`.
        pruned: the effect of pruning on each layer; empty where nothing was pruned.
        tensors: the outcome for each parameter, buffer and constant: quantized, in float and why, or not reached by the
            graph. Their bytes without constants add up to those of the model that was captured.
        conditions: on sizes, under which the graph equals the model, in words with the lines that ask.
        variants: of a model with several graphs, which inputs each of them is for and where it holds, in words.
        bits_per_weight: bits that are stored for each number of the model's parameters and buffers, with scales; read
            from the constants of what was lowered, or from the size of its files where these are opaque.
        output_sqnrs: the SQNR of each floating-point output by its name, measured like ``model_sqnr``. The main result
            comes first: what predicts tokens, and else the first output.
    """

    target: str
    seconds: Mapping[str, float]
    layers: tuple[LayerReport, ...] = ()
    float_bytes: int = 0
    size_bytes: int | None = None
    leaves: tuple[str, ...] = field(default=())
    fallbacks: tuple[str, ...] = ()
    name: str = ""
    model_sqnr: float | None = None
    simulated_sqnr: float | None = None
    measured_on: str = ""
    model_divergence: float | None = None
    dry_run: bool = False
    estimated_bytes: int | None = None
    unsupported: tuple[str, ...] = ()
    problem: str = ""
    remarks: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    pruned: tuple[PrunedLayer, ...] = ()
    tensors: tuple[TensorReport, ...] = ()
    conditions: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    bits_per_weight: float | None = None
    output_sqnrs: Mapping[str, float] = field(default_factory=dict)
    unpruned_sqnr: float | None = None

    @property
    def sparsity(self) -> dict[str, float]:
        """The share of each layer's parameters that is removed or zero, for an overlay: ``diagram.overlay(
        compiled.report.sparsity, name="sparsity")``; empty if nothing was pruned.
        """
        return {row.fqn: row.sparsity for row in self.pruned}

    def table(self, of: str = "layers") -> Any:
        """Return a pandas ``DataFrame`` with a row for each layer.

        Args:
            of: ``"layers"``; or ``"tensors"`` for a row for each parameter, buffer and constant of the model, which
                says what became of it.

        Raises:
            SettingsError: ``of`` is neither.

        Example:
            >>> compiled = pb.compile_model(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(1, 4), torch.ones(2, 4)])
            >>> list(compiled.report.table("tensors")["fqn"])
            ['weight', 'bias']
        """
        if of not in ("layers", "tensors"):
            raise SettingsError(f"of must be 'layers' or 'tensors', got {described(of)}. Write table('tensors').")
        return view("views.display", f"{of}_table", self)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CompileReport:
        """Read the data that :meth:`to_dict` wrote."""
        layers = tuple(_layer(row) for row in data["layers"])
        names = ("leaves", "fallbacks", "unsupported", "remarks", "reused", "conditions", "variants")
        lists = {name: tuple(data.get(name, ())) for name in names}
        pruned = tuple(PrunedLayer(**row) for row in data.get("pruned", ()))
        tensors = tuple(
            TensorReport(**{**row, "names": tuple(row.get("names", ()))}) for row in data.get("tensors", ())
        )
        return cls(**{**data, **lists, "layers": layers, "pruned": pruned, "tensors": tensors})

    def _repr_html_(self) -> str:
        return view("views.display", "report_html", self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        lines = [self.headline]
        lines += grouped_lines([(row.fqn, row.summary) for row in self.layers if not row.quantized])
        lines += grouped_lines([(row.fqn, row.summary) for row in self.layers if row.bits_to_measure])
        lines += grouped_lines([(row.fqn, row.note) for row in self.layers if row.quantized and row.note])
        lines += grouped_lines([(row.fqn, row.summary) for row in self.pruned])
        lines += self._left_over()
        return "\n".join(lines)

    def _left_over(self) -> list[str]:
        """Return tensors outside of layers that stay in float though as large as a weight, and unused ones."""
        if not self.layers:
            return []
        large = [row for row in self.tensors if row.elements >= _LARGE and row.reason]
        rows = [row for row in large if "stored" in row.reason or (not row.layer and row.outcome != QUANTIZED)]
        return grouped_lines([(row.fqn, f"{row.outcome}: {row.reason}") for row in rows], "tensors")

    @property
    def headline(self) -> str:
        """The facts on the whole model, in a few lines."""
        lines = [self._headline(), *self._accounted(), *self._stored_in_more(), *self._pruned()]
        lines += [f"  {remark}" for remark in self.remarks]
        lines += [f"  leaf: {name or 'the model itself'}" for name in self.leaves if not self.dry_run]
        lines += [f"  runs in PyTorch: {text}" for text in self.fallbacks]
        lines += [f"  holds where {text}" for text in self.conditions]
        lines += [f"  variant {index}: {text}" for index, text in enumerate(self.variants)]
        return "\n".join(lines)

    def _main_output(self) -> str:
        """Return the main result and its SQNR; a single output has no name."""
        if len(self.output_sqnrs) < 2:
            return f"outputs at {self.model_sqnr or 0:.1f} dB"
        name, sqnr = next(iter(self.output_sqnrs.items()))
        return f"{name} at {sqnr:.1f} dB"

    def _worst_output(self) -> str:
        if len(self.output_sqnrs) < 2:
            return ""
        name, sqnr = min(self.output_sqnrs.items(), key=lambda item: item[1])
        return f"; the worst of {len(self.output_sqnrs)} outputs is {name} at {sqnr:.1f} dB"

    def _simulated(self) -> str:
        """Return what was simulated, where lowering changed it."""
        simulated, found = self.simulated_sqnr, self.model_sqnr or 0.0
        if simulated is None or abs(simulated - found) < _SHOWN:
            return ""
        of_which = "" if len(self.output_sqnrs) < 2 else " for the worst output"
        return f"; {simulated:.1f} dB{of_which} in simulation, before lowering"

    def _accounted(self) -> list[str]:
        """Return the model's bytes by outcome."""
        counted = {outcome: size for outcome, size in totals(self.tensors).items() if size}
        if not self.layers or not counted:
            return []
        whole = sum(counted.values())
        shares = ", ".join(f"{size / whole:.1%} {outcome}" for outcome, size in counted.items())
        stored = "" if self.bits_per_weight is None else f"; {self.bits_per_weight:.2f} bits stored for each number"
        return [f"  of {megabytes(whole)} of parameters and buffers: {shares}{stored}"]

    def _stored_in_more(self) -> list[str]:
        """Return a line for the layers whose few bits save no memory."""
        return grouped_lines(
            (row.fqn, f"{row.weights_bits} bits, stored in {row.stored_bits:g}: 8 bits are as small and more exact")
            for row in self.layers
            if row.quantized and (row.stored_bits or 0) > row.weights_bits + 1
        )

    def _pruned(self) -> list[str]:
        if not self.pruned:
            return []
        all_of, gone = sum(row.parameters for row in self.pruned), sum(row.parameters - row.left for row in self.pruned)
        zeros, channels = (sum(getattr(row, name) for row in self.pruned) for name in ("zeros", "removed_channels"))
        return [
            f"  pruned: {channels} channels and {gone / all_of:.0%} of the weights removed, {zeros / all_of:.0%} zero"
        ]

    def _headline(self) -> str:
        quantized = sum(row.quantized for row in self.layers)
        weights = f"float weights {megabytes(self.float_bytes)}"
        counted = f"{quantized} of {len(self.layers)} layers quantized"
        if self.dry_run:
            about = "at least" if any(row.bits_to_measure for row in self.layers) else "about"
            size = f"{about} {megabytes(self.estimated_bytes or 0)}"
            lines = [f"Plan for {self.target}: {counted}, {size} ({weights})"]
            lines += [f"  cannot be quantized: {self.problem}"] if self.problem else []
            lines += [f"  {self.target} does not support {text}" for text in self.unsupported]
            return "\n".join(lines)
        size = "not saved" if self.size_bytes is None else megabytes(self.size_bytes)
        lines = [f"CompileReport for {self.target}: {counted}, {size} ({weights})"]
        if self.model_sqnr is not None:
            diverged = self.model_divergence
            further = "" if diverged is None else f", predictions at a divergence of {diverged:.3g} nats"
            where = f"{self.measured_on or 'calibration samples'}, to which ranges and biases are fitted"
            which = "the pruned model in float" if self.pruned else "float"
            lines.append(
                f"  {self._main_output()} from {which}{further} on {where}{self._worst_output()}{self._simulated()}"
            )
            if self.unpruned_sqnr is not None:
                of_which = "" if len(self.output_sqnrs) < 2 else "the worst output "
                lines.append(f"  {of_which}at {self.unpruned_sqnr:.1f} dB from the float model before pruning")
        lines.append("  " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in self.seconds.items()))
        lines += [f"  reused from an earlier compile: {', '.join(self.reused)}"] if self.reused else []
        return "\n".join(lines)


def megabytes(size: float) -> str:
    """Return bytes in MB (10**6), with digits that a small model has, too.

    Example:
        >>> megabytes(12_345_678), megabytes(2_720), megabytes(0)
        ('12.35 MB', '0.0027 MB', '0 MB')
    """
    return f"{size / 1e6:.2g} MB" if size < 10_000 else f"{size / 1e6:.2f} MB"


def grouped_lines(texts: Iterable[tuple[str, str]], what: str = "layers") -> list[str]:
    """Return one line for all layers, or ``what`` they are, with the same remark: their number, and their names as
    patterns.

    Example:
        >>> grouped_lines([("layers.0.up", "float"), ("layers.1.up", "float"), ("head", "int8")])
        ['  2 layers (layers.*.up): float', '  head: int8']
    """
    alike: dict[str, list[str]] = {}
    for fqn, text in texts:
        alike.setdefault(text, []).append(fqn)
    lines = []
    for text, names in alike.items():
        patterns = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "*", name) for name in names))
        shown = ", ".join(patterns[:_PATTERNS]) + (
            f" and {more} more" if (more := len(patterns) - _PATTERNS) > 0 else ""
        )
        lines.append(f"  {names[0]}: {text}" if len(names) == 1 else f"  {len(names)} {what} ({shown}): {text}")
    return lines


def _layer(row: Mapping[str, Any]) -> LayerReport:
    names = ("input_range", "scale_range", "bits_to_measure")
    ranges = {name: tuple(row[name]) for name in names if row.get(name) is not None}
    return LayerReport(**{**row, **ranges})


def names_of(leaves: Iterable[Failure]) -> tuple[str, ...]:
    """Return leaves as a report names them: modules by their FQN, lines in words."""
    return tuple(leaf.fqn if leaf.lines is None else leaf.part for leaf in leaves)
