"""A folder from somebody else is read without running anything in it, and every damage has a typed error."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ArtifactError, PrepbenchError
from prepbench.package.artifact import MANIFEST

Attack = Callable[[Path], None]


def save(folder: Path, target: pb.DeploymentSettings) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    samples = [torch.randn(1, 4), torch.randn(2, 4)]
    pb.compile_model(model, tracing_inputs=samples, deployment_settings=target).save(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def onnx_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("onnx"), pb.OnnxRuntimeDeployment())


@pytest.fixture(scope="module")
def eager_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("eager"), pb.EagerDeployment())


def copied(folder: Path, place: Path) -> Path:
    place.mkdir()
    for file in folder.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    return place


def reseal(folder: Path) -> None:
    """Make the manifest fit the files, as an attacker would."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))


def with_manifest(change: Callable[[dict], object]) -> Attack:  # type: ignore[type-arg]
    def attack(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        change(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return attack


def added(name: str, content: bytes = b"x") -> Attack:
    def attack(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return attack


def replaced(make: Callable[[Path], object]) -> Attack:
    def attack(folder: Path) -> None:
        (folder / "model.onnx").unlink()
        make(folder / "model.onnx")

    return attack


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


ATTACKS: dict[str, Attack] = {
    "no files listed": with_manifest(lambda manifest: manifest.update(files={})),
    "files as a list": with_manifest(lambda manifest: manifest.update(files=["model.onnx"])),
    "files as a text": with_manifest(lambda manifest: manifest.update(files="model.onnx")),
    "no files at all": with_manifest(lambda manifest: manifest.pop("files")),
    "a place outside": with_manifest(
        lambda manifest: manifest["files"].update({"../x": manifest["files"]["model.onnx"]})
    ),
    "an absolute place": with_manifest(lambda m: m["files"].update({"/etc/passwd": m["files"]["model.onnx"]})),
    "a wrong size": with_manifest(lambda manifest: manifest["files"]["model.onnx"].update(bytes=1)),
    "an unlisted file": added("extra.bin"),
    "parts that nobody listed": added("parts.json", b'{"inputs": [], "outputs": [], "parts": []}'),
    "an unlisted file in a folder": added("part_0/program.json"),
    "a folder for a file": replaced(lambda path: path.mkdir()),
    "a link": replaced(lambda path: path.symlink_to("/dev/zero")),
    "a pipe": replaced(os.mkfifo),
    "nested too deep": lambda folder: (folder / MANIFEST).write_text("[" * 100_000) and None,
    "no UTF-8": lambda folder: (folder / MANIFEST).write_bytes(b"\xff\xfe{") and None,
    "a manifest that is a pipe": lambda folder: pipe(folder / MANIFEST),
    "calls of another form": with_manifest(lambda manifest: manifest.update(calls=[1, 2])),
    "a report of another form": with_manifest(lambda manifest: manifest.update(report={"layers": 3})),
    "a target of another type": with_manifest(lambda manifest: manifest.update(target=[])),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.timeout(20)
def test_an_attack_is_refused(name: str, onnx_folder: Path, tmp_path: Path) -> None:
    folder = copied(onnx_folder, tmp_path / "model")
    ATTACKS[name](folder)
    with pytest.raises(ArtifactError) as caught:
        pb.load_compiled(folder)
    assert str(folder) in str(caught.value)


def test_a_resealed_plan_of_parts_is_checked(eager_folder: Path, tmp_path: Path) -> None:
    contents = ("[]", "{}", '{"inputs": ["x"], "outputs": ["y"], "parts": []}', "[" * 100_000)
    for number, content in enumerate(contents):
        folder = copied(eager_folder, tmp_path / str(number))
        (folder / "parts.json").write_text(content)
        reseal(folder)
        with pytest.raises(ArtifactError, match=r"parts\.json is damaged"):
            pb.load_compiled(folder)


def test_weights_outside_the_folder_are_not_read(onnx_folder: Path, tmp_path: Path) -> None:
    import onnx

    folder = copied(onnx_folder, tmp_path / "model")
    model = onnx.load(folder / "model.onnx")
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    (tmp_path / "secret").write_bytes(b"\0" * 1000)
    onnx.save(model, folder / "model.onnx")
    reseal(folder)
    with pytest.raises(PrepbenchError):
        pb.load_compiled(folder)


@pytest.mark.timeout(120)
def test_random_damage_has_a_typed_error(onnx_folder: Path, eager_folder: Path, tmp_path: Path) -> None:
    """Files are cut, flipped, emptied and swapped, with fitting digests: an error of ours, or a model that loads."""
    generator = random.Random(0)
    for number in range(60):
        folder = copied((onnx_folder, eager_folder)[number % 2], tmp_path / str(number))
        files = [path for path in folder.iterdir() if path.name != MANIFEST]
        path = generator.choice(files)
        data = bytearray(path.read_bytes())
        if number % 3 == 0:
            del data[generator.randrange(len(data)) :]
        elif number % 3 == 1:
            for _ in range(4):
                data[generator.randrange(len(data))] = generator.randrange(256)
        else:
            data = bytearray(generator.randbytes(len(data)))
        path.write_bytes(data)
        reseal(folder)
        with contextlib.suppress(PrepbenchError):
            pb.load_compiled(folder)


def test_machine_code_needs_consent(tmp_path: Path) -> None:
    folder = save(tmp_path, pb.InductorDeployment())
    with pytest.raises(ArtifactError, match=r"machine code.*allow_code=True"):
        pb.load_compiled(folder)
    assert pb.load_compiled(folder, allow_code=True)(torch.ones(3, 4)).shape == (3, 2)
    (package,) = (path for path in folder.iterdir() if path.suffix == ".pt2")
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("x", "y")
    reseal(folder)
    with pytest.raises(ArtifactError):
        pb.load_compiled(folder, allow_code=True)


def test_a_damaged_executorch_program_does_not_end_the_process(tmp_path: Path) -> None:
    folder = save(tmp_path, pb.ExecuTorchDeployment())
    path = folder / "model.pte"
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))
    reseal(folder)
    with pytest.raises(ArtifactError, match="damaged"):
        pb.load_compiled(folder)
