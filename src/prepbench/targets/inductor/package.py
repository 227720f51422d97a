"""Run a package that Inductor compiled ahead of time, with its weights aligned for oneDNN."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch

from prepbench._torch_compat.inductor import load_library
from prepbench.errors import ArtifactError
from prepbench.storage import KeptFolder

# the entry of a package that says in which order the dims of each input lie in memory
_ORDERS = "prepbench/dim_orders.json"
# bytes of a cache line, to which torch's own allocator aligns tensors
_LINE = 64


class Package:
    """The machine code of a ``.pt2`` file, loaded; safe to call from several threads.

    torch's loader copies weights to memory from ``malloc``, which starts 16 bytes after a cache line when it is large.
    Each load of a packed weight then reads two lines, and int8 convolutions take 1.25 times as long (torch 2.13). So
    these weights are copied to the memory of tensors, and the first copy is not used again.

    Args:
        file: the output of ``aoti_compile_and_package``.

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
    """Record the memory layout of a package's inputs, because the machine code assumes it unchecked.

    Args:
        file: the output of ``aoti_compile_and_package``.
        inputs: the tensors with which the program was traced.
    """
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
