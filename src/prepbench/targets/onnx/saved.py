"""Checks of an ONNX file from somebody else, before a runtime reads it."""

from __future__ import annotations

from pathlib import Path

from prepbench.errors import ArtifactError, sentence


def check_saved(file: Path) -> None:
    """Raise ``ArtifactError`` unless the file is valid ONNX whose weights lie in it or beside it."""
    import onnx

    try:
        onnx.checker.check_model(str(file))
    except Exception as error:  # its errors have no common base
        raise ArtifactError(
            f"{file} is no valid ONNX: {sentence(error)} Copy the folder again, or compile and save the model again."
        ) from error
