"""Checks of saved ONNX files before a runtime reads them, and weights in files beside them."""

from __future__ import annotations

from pathlib import Path

from prepbench.errors import ArtifactError, sentence

# bytes of one protobuf message
_LIMIT = 2**31 - 2**20


def check_saved(file: Path) -> None:
    """Raise ``ArtifactError`` unless the file is valid ONNX whose weights lie in it or beside it."""
    import onnx

    try:
        onnx.checker.check_model(str(file))
    except Exception as error:  # its errors share no base class
        raise ArtifactError(
            f"{file} is no valid ONNX: {sentence(error)} Copy the folder again, or compile and save the model again."
        ) from error


def put_weights_inside(file: Path) -> None:
    """Merge a graph and the weights beside it into one file, in place, up to its limit (2 GB)."""
    import onnx

    beside = [path for path in file.parent.glob(f"{file.name}*") if path != file]
    if not beside or sum(path.stat().st_size for path in (file, *beside)) >= _LIMIT:
        return
    onnx.save(onnx.load(str(file)), str(file))
    for path in beside:
        path.unlink()
