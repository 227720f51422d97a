"""PyTorch's Inductor on the CPU: compiled ahead of time, or just in time if leaves call back into Python."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.inductor import (
    compile_package,
    find_cpp_compiler,
    inductor_options,
    kernel_events,
    load_library,
)
from prepbench._torch_compat.scans import scans_in
from prepbench.capture.aten.computed_in_float32 import is_rounding
from prepbench.capture.aten.export_program import traced_alike
from prepbench.errors import ArtifactError, MissingPackageError, TargetError, sentence
from prepbench.internal_errors import raise_if_internal
from prepbench.patching import logs_dropped_here, warnings_ignored_here
from prepbench.quantize import Constraint, Placement, why_reduce_range
from prepbench.quantize.layer_nodes import WEIGHTED
from prepbench.settings import DeploymentSettings, InductorDeployment
from prepbench.storage import KeptFolder, temporary_folder
from prepbench.targets.base import NO_RECURRENT, NO_TABLES, NO_TRANSPOSED, NO_TRUST, Lowering, Runtime, Target, Trust
from prepbench.targets.inductor.passes import fit_to_inductor
from prepbench.targets.kernel_times import KernelTime, KernelTimes, layers_of, mean_call, placed
from prepbench.targets.programs import GRAPH, check_kept_state, load_program, save_program

FILE = "model.pt2"


class AheadOfTime(Runtime):
    """A compiled package: machine code, with the weights folded in."""

    def __init__(self, file: Path, keep: KeptFolder | None = None, lowering: Lowering | None = None) -> None:
        self._file = file
        self._keep = keep
        self._lowering = lowering
        self._package = Package(file)

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        return self._package([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        """Return the time of each kernel; compiles once more, with instrumented kernels."""
        if self._lowering is None:
            raise TargetError(
                "A loaded package of Inductor does not know the layers of its model. Profile what compile_model "
                "returned, or the same model compiled for OnnxRuntimeDeployment() or OpenVinoDeployment()."
            )
        program = fit_to_inductor(self._lowering.program)
        with temporary_folder("profile") as folder:
            file = folder / FILE
            _compile(program, self._lowering, file, {**_options(program), **OPTIONS})
            return kernel_times(AheadOfTime(file).run, calls, rounds, file, program.graph)

    def save(self, folder: Path) -> None:
        shutil.copy(self._file, folder / FILE)

    def stored_bits(self) -> Mapping[str, int]:
        return self._package.stored_bits


class JustInTime(Runtime):
    """``torch.compile`` of a program with leaves, which call back into the Python of this process."""

    def __init__(self, program: torch.export.ExportedProgram, keep_alive: object = None) -> None:
        self._program = program
        self._keep_alive = keep_alive
        # leaves may keep state, and may run a compiled model themselves
        self._lock = threading.RLock()
        self._compiled = torch.compile(fit_to_inductor(program).module(check_guards=False), dynamic=True)
        self._has_run = False

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        # Inductor makes weights constants only while this option is set, also when a new size needs another kernel
        quiet = contextlib.nullcontext() if self._has_run else _quiet()
        with self._lock, quiet, torch.no_grad(), inductor_options(**_options(self._program)):
            outputs: Sequence[Any] = self._compiled(*leaves)
        self._has_run = True
        return outputs

    def save(self, folder: Path) -> None:
        save_program(self._program, folder)  # it is compiled again once it is loaded


# With one input channel, contiguous and channels-last memory look the same, and what follows such an int8 convolution
# reads its output in the other order (torch 2.13).
_WRONG_CONVOLUTION = Constraint(
    lambda call: not call.is_weights_only and call.layer.is_convolution and call.layer.input_channels == 1,
    "int8 convolutions of one input channel are wrong on this target",
)


class InductorTarget(Target):
    """Machine code that Inductor compiles."""

    name = "inductor"
    display_name = "Inductor"
    settings_type = InductorDeployment
    runs_leaves = True
    unraised_errors = frozenset({"positions"})
    keeps_writes = True
    placement = Placement(
        constraints=(NO_TABLES, NO_TRANSPOSED, NO_RECURRENT, _WRONG_CONVOLUTION), reduce_range=why_reduce_range()
    )

    def check_available(self, *, by_import: bool = True) -> None:
        try:
            find_cpp_compiler()
        except Exception as error:  # Inductor's own
            raise_if_internal(error, of_libraries=True)
            raise MissingPackageError(
                "InductorDeployment needs a C++ compiler, and none was found. Install one (Debian: apt-get install "
                "g++), or name yours in the environment variable CXX, or choose OnnxRuntimeDeployment()."
            ) from error

    def unsupported_nodes(self, program: torch.export.ExportedProgram) -> Sequence[torch.fx.Node]:
        """Return loops of dynamic length: Inductor fails to find the sizes of their results (torch 2.13)."""
        return scans_in(program.graph)

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        if scans_in(lowering.program.graph):
            raise TargetError("Inductor cannot compile a loop of dynamic length.")
        check_kept_state(lowering.program)  # buffers are folded in like weights
        if lowering.leaves:
            try:
                runtime = JustInTime(lowering.program, lowering.keep_alive)
                runtime.run(_examples(lowering))  # compiles now, not at the first call
                return runtime
            except Exception as error:  # of dynamo and of Inductor's passes, which raise untyped errors
                raise_if_internal(error)
                raise TargetError(
                    f"Inductor cannot compile a graph around Python code: {type(error).__name__}: {sentence(error)}"
                ) from error
        keep = KeptFolder("inductor")
        file = keep.path / FILE
        try:
            _compile(fit_to_inductor(lowering.program), lowering, file, _options(lowering.program))
        except Exception as error:  # Inductor's passes raise untyped errors
            raise_if_internal(error)
            raise TargetError(
                f"Inductor cannot compile the graph: {type(error).__name__}: {sentence(error)} Choose another target, "
                "such as OnnxRuntimeDeployment(), for this model."
            ) from error
        return AheadOfTime(file, keep, lowering)

    def load(self, folder: Path, settings: DeploymentSettings, trust: Trust = NO_TRUST) -> Runtime:
        is_program = (folder / GRAPH).exists()
        if not trust.allow_code:
            what = "a program that Inductor compiles to machine code" if is_program else "machine code"
            raise ArtifactError(
                f"{folder} holds {what}{'' if is_program else ' that Inductor compiled'}, and loading it would run "
                "that code with your rights. If you trust where it comes from, load it with load_compiled(path, "
                "allow_code=True)."
            )
        if is_program:
            return JustInTime(load_program(folder, trust))
        return AheadOfTime(folder / FILE)


def _compile(program: torch.export.ExportedProgram, lowering: Lowering, file: Path, options: dict[str, Any]) -> None:
    with torch.no_grad(), _quiet(), traced_alike(program.graph):
        compile_package(program, file, options)
        write_dim_orders(file, [leaf for leaf in _examples(lowering) if isinstance(leaf, torch.Tensor)])


def _examples(lowering: Lowering) -> Sequence[Any]:
    """Return the input leaves that the program was traced with."""
    assert lowering.program.example_inputs is not None
    leaves: Sequence[Any] = lowering.program.example_inputs[0]
    return leaves


def _options(program: torch.export.ExportedProgram) -> dict[str, Any]:
    from prepbench._torch_compat.inductor_pass import ExpectedSizes  # loads Inductor

    return {
        "freezing": True,
        "joint_custom_post_pass": ExpectedSizes(),
        # else a kernel computes in float32 what the model rounds on purpose
        "emulate_precision_casts": any(map(is_rounding, program.graph.nodes)),
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Inductor's warnings about its own internals during the block."""
    with logs_dropped_here(below=logging.ERROR), warnings_ignored_here():
        yield


# Run a package that Inductor compiled ahead of time, with its weights aligned for oneDNN.


# the entry of a package that says in which order the dims of each input lie in memory
_ORDERS = "prepbench/dim_orders.json"
# bytes of a cache line, to which torch's own allocator aligns tensors
_LINE = 64


class Package:
    """The machine code of a ``.pt2`` file, loaded; safe to call from several threads.

    torch's loader copies weights to memory from ``malloc``, which starts 16 bytes after a cache line when it is large.
    Each load of a packed weight then reads two lines, and int8 convolutions take 1.25 times as long (torch 2.13). So
    these weights are copied to the memory of tensors, and the first copy is not used again.

    Attributes:
        stored_bits: of each constant, as the library has them; those that Inductor packed have names of its own.

    Raises:
        ArtifactError: the file does not hold one library.
    """

    def __init__(self, file: Path) -> None:
        self._folder = KeptFolder("inductor")
        library = _extract(file, self._folder.path)
        self._orders = _read_dim_orders(file)
        self._runner = load_library(library)
        constants: dict[str, torch.Tensor] = self._runner.extract_constants_map(False)
        is_off = any(value.data_ptr() % _LINE for value in constants.values() if not value.is_mkldnn and value.numel())
        self.stored_bits = {name: 8 * value.numel() * value.dtype.itemsize for name, value in constants.items()}
        # the runner points to these and does not own them
        self._weights = {name: value.clone() for name, value in constants.items() if value.is_mkldnn and is_off}
        if self._weights:
            self._runner.update_constant_buffer(self._weights, False, False, True)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        laid_out = [_with_order(value, order) for value, order in zip(inputs, self._orders, strict=True)]
        outputs: Sequence[torch.Tensor] = self._runner.run(laid_out)
        return outputs


def write_dim_orders(file: Path, inputs: Sequence[torch.Tensor]) -> None:
    """Record the memory layout of a package's traced inputs, because the machine code assumes it unchecked."""
    orders = [sorted(range(value.dim()), key=value.stride, reverse=True) for value in inputs]
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(_ORDERS, json.dumps(orders))


def _read_dim_orders(file: Path) -> list[list[int]]:
    with zipfile.ZipFile(file) as archive:
        try:
            orders: list[list[int]] = json.loads(archive.read(_ORDERS))
            if all(sorted(order) == list(range(len(order))) for order in orders):
                return orders
        except (KeyError, ValueError, TypeError):
            pass
    raise ArtifactError(f"{file} does not say how its inputs lie in memory. Compile the model again.")


def _with_order(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return the tensor dense and with its dims in this memory order: itself, or a copy."""
    laid_out = value.permute(*order).contiguous().resolve_conj().resolve_neg() if order else value
    return laid_out.permute(*sorted(range(len(order)), key=order.__getitem__)) if order else value


def _extract(file: Path, folder: Path) -> Path:
    """Write the library in a package, and the files beside it, to ``folder``; return its path."""
    with zipfile.ZipFile(file) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        if len(libraries) != 1:
            raise ArtifactError(
                f"{file} holds {len(libraries)} libraries where one was expected. Compile the model again."
            )
        beside = libraries[0].rpartition("/")[0]
        for name in archive.namelist():
            parent, _, own = name.rpartition("/")
            if parent == beside and own and not own.endswith(".cpp"):
                with archive.open(name) as source, (folder / own).open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    return folder / libraries[0].rpartition("/")[2]


# The kernels of a package, mapped to layers by Inductor's own notes on their origin.


# options with which kernels say when they run, and the package where they come from
OPTIONS = {"cpp.enable_kernel_profile": True, "trace.provenance_tracking_level": 1}

_NOTES = "kernel_information.json"
_FUSED = "cpp_fused_"
_PRODUCTS = ("conv", "linear")  # in the names of kernels, and of operators


def kernel_times(
    run: Callable[[Sequence[Any]], object], calls: Sequence[Sequence[Any]], rounds: int, file: Path, graph: fx.Graph
) -> KernelTimes:
    """Run a package compiled with :data:`OPTIONS`, after one call to warm up, and return the time of each kernel."""
    sources = _sources(file)
    places = _Places(graph)
    for leaves in calls:
        run(leaves)
    measured = []
    for leaves in [each for each in calls for _ in range(rounds)]:
        events, seconds = kernel_events(partial(run, leaves))
        measured.append(_call(events, seconds, sources, places))
    return mean_call(measured, len(calls))


def _call(
    events: Sequence[tuple[str, float]], seconds: float, sources: Mapping[str, list[list[str]]], places: _Places
) -> KernelTimes:
    names = [event[event.find(_FUSED) :] if _FUSED in event else event for event, _ in events]
    noted = [_noted(name, sources) for name in names]
    counts = Counter(noted)
    met: defaultdict[str, int] = defaultdict(int)
    layers: list[str | None] = []
    unknown, left = [], places.products()
    for at, name in enumerate(noted):
        known = sources.get(name, [])
        nodes = known[met[name] % len(known)] if known else []
        met[name] += 1
        # products without fused nodes have no notes, so the notes of the others cannot be matched by position
        product = places.product(name, nodes) if len(known) == counts[name] else None
        if product in left:
            left.remove(product)
        elif _kind(name):
            unknown.append(at)
        layers.append(places.of(name, nodes) if product is None else places.layer(product))
    for kind in _PRODUCTS:
        kernels_of_kind = [at for at in unknown if _kind(names[at]) == kind]
        nodes_of_kind = [node for node in left if kind in str(node.target)]
        if len(kernels_of_kind) == len(nodes_of_kind):
            for at, node in zip(kernels_of_kind, nodes_of_kind, strict=True):
                layers[at] = places.layer(node)
    met.clear()
    kernels: list[KernelTime] = []
    for name, layer, (_, taken) in zip(names, layers, events, strict=True):
        met[name] += 1
        kernels.append(placed(f"{name}:{met[name]}", _operator(name), layer, taken))
    return KernelTimes(tuple(kernels), seconds)


def _noted(name: str, sources: Mapping[str, Any]) -> str:
    """Return the name by which the notes know a kernel: an operator that is not of ATen runs under its own name."""
    space, _, operator = name.partition("::")
    if not operator or space == "aten":
        return name
    return next((one for one in sources if one.startswith("aoti_torch_") and one.endswith(f"_{operator}")), name)


def _kind(name: str) -> str:
    """Return the kind of layer that an external kernel multiplies for; empty for others."""
    return "" if name.startswith(_FUSED) else next((kind for kind in _PRODUCTS if kind in name), "")


def _operator(name: str) -> str:
    """Return a kernel's name without its number; conversions by what they convert."""
    plain = name.rstrip("0123456789").rstrip("_")
    words = plain.removeprefix(_FUSED)
    return words if plain.startswith(_FUSED) and words.startswith(("quantize_per_", "dequantize_per_")) else plain


def _sources(file: Path) -> dict[str, list[list[str]]]:
    """Return the nodes from which the kernels of one name come, in execution order."""
    with zipfile.ZipFile(file) as archive:
        path = next((name for name in archive.namelist() if name.endswith(_NOTES)), None)
        notes = json.loads(archive.read(path)) if path else {}
    found: defaultdict[str, list[list[str]]] = defaultdict(list)
    for key, note in notes.items():
        found[key.rpartition(":")[0]].append(list(note.get("pre_grad_nodes", ())))
    return found


class _Places:
    """The layer of a kernel, by the nodes that it computes."""

    def __init__(self, graph: fx.Graph) -> None:
        self._layers = layers_of(graph)
        self._nodes = {node.name: node for node in graph.nodes}
        self._order = {node: place for place, node in enumerate(graph.nodes)}

    def of(self, name: str, nodes: Sequence[str]) -> str | None:
        """Return the layer of a kernel that is no product."""
        return next((self._layers[each] for each in nodes if self._layers.get(each) is not None), None)

    def layer(self, node: fx.Node) -> str | None:
        """Return the layer of a node."""
        return self._layers.get(node.name)

    def products(self) -> list[fx.Node]:
        """Return the nodes that multiply by weights, in the order of the graph."""
        return [node for node in self._nodes.values() if node.target in WEIGHTED]

    def product(self, name: str, nodes: Sequence[str]) -> fx.Node | None:
        """Return the product that a kernel computes, from the notes on nodes fused into it, or on the quantizer after
        it.

        If one fused kernel contains two products, it computes the later one: the other has been computed before.
        """
        if not _kind(name):
            return None
        found, left = set[fx.Node](), [self._nodes[each] for each in nodes if each in self._nodes]
        seen = set(left)
        while left:
            node = left.pop()
            if node.target in WEIGHTED:
                found.add(node)
                continue
            before = [each for each in node.all_input_nodes if each not in seen]
            seen.update(before)
            left += before
        return max(found, key=self._order.__getitem__, default=None)
