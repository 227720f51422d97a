"""Saving and loading exported programs without pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from prepbench._torch_compat import without_example_inputs
from prepbench.errors import ArtifactError

FILE = "program.pt2"


def save_program(program: torch.export.ExportedProgram, folder: Path) -> None:
    """Write ``program`` to ``folder/program.pt2``: a JSON graph and raw weights."""
    torch.export.save(without_example_inputs(program), folder / FILE)
    _refuse_pickles(folder / FILE)


def load_program(folder: Path) -> torch.export.ExportedProgram:
    """Read what :func:`save_program` wrote.

    Raises:
        ArtifactError: the archive holds a pickle, which prepbench neither writes nor reads.
    """
    _refuse_pickles(folder / FILE)
    return torch.export.load(folder / FILE)


def _refuse_pickles(path: Path) -> None:
    """No member may be in a format that torch would unpickle."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size and member.filename.endswith((".pt", ".pkl", ".pickle")):
                raise ArtifactError(f"{path} holds {member.filename}, which would have to be unpickled. Compile and save the model again.")
            if member.filename.endswith("_config.json") and b'"use_pickle": true' in archive.read(member):
                raise ArtifactError(f"{path}: {member.filename} asks for pickle. Compile and save the model again.")
