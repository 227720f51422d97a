"""Damage by chance, and attacks, on folders and on JSON; the same seed gives the same damage."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepbench.package.artifact import MANIFEST


class Payload:
    """Writes the marker file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self._marker}",))


def texts(marker: Path) -> list[str]:
    """Texts that run, import, look up or break something where a reader trusts them."""
    touch = f"__import__('os').system('touch {marker}')"
    return [
        touch,
        f"Integer({touch})",
        f"Symbol('s0', integer=True) + {touch}",
        f"lambda: {touch}",
        f"x\n{touch}\n",
        f"torch.ops.aten.from_file.default({touch})",
        f"_operator.methodcaller('__class__') or {touch}",
        "torch.ops.aten.from_file.default",
        "torch.os.system",
        "torch.utils.data.os.system",
        "builtins.exec",
        "os.system",
        "prepbench.errors.re",
        "torch._C._aoti.AOTIModelContainerRunnerCpu",
        "__class__.__init__.__globals__",
        f"../../../../../..{marker}",
        str(marker),
        "/dev/zero",
        "\ud800",
        "\x1b[2J\x00",
        "\u202etxt.exe",
        "<script>alert(1)</script>",
        "Pow(Pow(Integer(9), Integer(9)), Integer(99))",
        "Integer(" * 3000 + "1" + ")" * 3000,
        "9" * 5000,
        "a" * 200_000,
        "",
    ]


def values(marker: Path) -> list[Any]:
    """What may stand in JSON where a reader expects something else."""
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    numbers = [-1, 0, 1, 2**31, 2**63, 2**64, 10**400, -(2**63), 1e308, 0.5]
    special = [float("nan"), float("inf"), True, False, None, [], {}, [[]], {"": {}}, [None] * 1000, deep]
    return [*texts(marker), *numbers, *special]


def nested(generator: random.Random) -> str:
    """JSON that nests 100,000 deep."""
    return generator.choice(("[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000))


def changed_json(text: str, marker: Path, generator: random.Random) -> str:
    """The text with one to three places of its content changed."""
    content = json.loads(text)
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        places = list(_places(content))
        if not places:
            break
        holder, key = generator.choice(places)
        _change(holder, key, marker, generator)
    return json.dumps(content)


def _places(content: Any) -> Any:
    for key in list(content) if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])


def _change(holder: Any, key: Any, marker: Path, generator: random.Random) -> None:
    old = holder[key]
    way = generator.randrange(10)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[generator.choice(texts(marker))] = holder.pop(key)
    elif way == 2 and isinstance(old, list) and old:
        old.append(generator.choice(old))
    elif way == 3 and isinstance(old, list) and len(old) > 1:
        generator.shuffle(old)
    elif way == 4 and isinstance(old, str) and old[:1] in ("[", "{"):
        holder[key] = nested(generator) if generator.random() < 0.3 else changed_json(old, marker, generator)
    elif way == 5 and type(old) is int:
        holder[key] = old + generator.choice((-1, 1, 7, 2**31))
    elif way == 6 and isinstance(holder, list):
        holder.insert(generator.randrange(len(holder) + 1), generator.choice(values(marker)))
    else:
        holder[key] = generator.choice(values(marker))


def changed_bytes(data: bytes, generator: random.Random) -> bytes:
    """Cut, flipped, emptied, repeated or replaced by noise."""
    way, size = generator.randrange(7), max(len(data), 1)
    if way == 0:
        return data[: generator.randrange(size)]
    if way <= 3:
        flipped = bytearray(data or b"\0")
        for _ in range(generator.choice((1, 1, 4, 64))):
            flipped[generator.randrange(len(flipped))] ^= 1 << generator.randrange(8)
        return bytes(flipped)
    if way == 4:
        start = generator.randrange(size)
        return data[:start] + data[start + generator.randrange(1, 64) :]
    if way == 5:
        start = generator.randrange(size)
        return data[:start] + data[start : start + 64] + data[start:]
    return generator.choice((b"", generator.randbytes(size), b"\0" * size))


def _changed_numbers(data: bytes, marker: Path, generator: random.Random) -> bytes:
    """One number or quoted text of a text file replaced, as in OpenVINO's XML."""
    found = list(re.finditer(rb'-?\d+|"[^"]*"', data))
    if not found:
        return changed_bytes(data, generator)
    match = generator.choice(found)
    if match[0].startswith(b'"'):
        new = b'"' + generator.choice(texts(marker)).encode(errors="surrogatepass").replace(b'"', b"'") + b'"'
    else:
        new = str(generator.choice((-1, 0, 1, 2**31, 2**63, 10**12, 10**30))).encode()
    return data[: match.start()] + new + data[match.end() :]


def payload_bytes(marker: Path, generator: random.Random) -> bytes:
    """A file that runs code where it is unpickled, in the forms that torch, NumPy and Python read."""
    pickled = pickle.dumps(Payload(marker))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("archive/data.pkl", "data.pkl", "models/model.json", "archive/byteorder", "archive/version"):
            file.writestr(name, pickled)
    array = b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(69) + b"\n"
    return generator.choice((pickled, archive.getvalue(), array + pickled))


def reseal(folder: Path) -> None:
    """Make the manifest fit the files, as an attacker would."""
    path = folder / MANIFEST
    if not _is_plain(path):
        return
    try:
        manifest = json.loads(path.read_bytes())
        manifest["files"] = {
            file.relative_to(folder).as_posix(): {
                "bytes": file.stat().st_size,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
            for file in sorted(folder.rglob("*"))
            if _is_plain(file) and file.name != MANIFEST
        }
        path.write_text(json.dumps(manifest))
    except (OSError, ValueError, TypeError, RecursionError):  # the manifest itself is what was attacked
        return


def _is_plain(path: Path) -> bool:
    return os.path.lexists(path) and stat.S_ISREG(path.lstat().st_mode)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _bytes(folder: Path, marker: Path, generator: random.Random) -> None:
    path = generator.choice(_files(folder))
    path.write_bytes(changed_bytes(path.read_bytes(), generator))


def _numbers(folder: Path, marker: Path, generator: random.Random) -> None:
    readable = [path for path in _files(folder) if path.suffix in (".json", ".xml")]
    path = generator.choice(readable)
    path.write_bytes(_changed_numbers(path.read_bytes(), marker, generator))


def _json(folder: Path, marker: Path, generator: random.Random) -> None:
    path = generator.choice([path for path in _files(folder) if path.suffix == ".json"])
    path.write_text(changed_json(path.read_text(), marker, generator))


def _nested(folder: Path, marker: Path, generator: random.Random) -> None:
    generator.choice([path for path in _files(folder) if path.suffix == ".json"]).write_text(nested(generator))


def _swapped(folder: Path, marker: Path, generator: random.Random) -> None:
    one, other = generator.sample([*_files(folder), *_files(folder)], 2)
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])


def _payload(folder: Path, marker: Path, generator: random.Random) -> None:
    generator.choice(_files(folder)).write_bytes(payload_bytes(marker, generator))


_ADDED = ("data.pkl", "parts.json", "part_0/program.json", "program.json", "model.pt2", "__init__.py", "x.so", "a/b/c")


def _added(folder: Path, marker: Path, generator: random.Random) -> None:
    place = folder / generator.choice(_ADDED)
    place.parent.mkdir(parents=True, exist_ok=True)
    code = f"import os; os.system('touch {marker}')".encode()
    place.write_bytes(generator.choice((code, payload_bytes(marker, generator), b"{}")))


def _removed(folder: Path, marker: Path, generator: random.Random) -> None:
    generator.choice(_files(folder)).unlink()


def _special(folder: Path, marker: Path, generator: random.Random) -> None:
    """Something that is not a regular file in place of one."""
    path = generator.choice(_files(folder))
    kept = path.with_name(f"{path.name}.kept")
    path.rename(kept)
    way = generator.randrange(7)
    if way == 0:
        os.mkfifo(path)
    elif way == 1:
        path.mkdir()
    elif way == 2 and os.geteuid() == 0:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, generator.choice((3, 5, 7))))
    else:
        targets = ("/dev/zero", "/dev/random", path.name, kept.name, str(kept), "/proc/self/mem", ".", "absent")
        path.symlink_to(generator.choice(targets))
    if generator.random() < 0.5:
        kept.unlink()


def _leaf(folder: Path, marker: Path, generator: random.Random) -> None:
    """What a manifest says of leaves, and their programs; where there are none, its JSON as a whole."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_bytes())
    content = manifest.get("leaves")
    operators = content["operators"] if content else []
    pieces = sorted(place for place in folder.iterdir() if place.is_dir())
    if not operators or len(pieces) < 2:
        _json(folder, marker, generator)
        return
    way, (one, other) = generator.randrange(8), generator.sample(operators, 2)
    if way == 0:  # programs swapped
        aside = folder / "aside"
        for source, place in ((pieces[0], aside), (pieces[1], pieces[0]), (aside, pieces[1])):
            source.rename(place)
    elif way == 1:  # one program is another one's, by a link
        place = generator.choice(pieces)
        place.rename(marker.parent / f"{folder.name} {place.name}")
        place.symlink_to(generator.choice([pieces[0], pieces[1], Path("/"), Path(".."), Path("/dev")]))
    elif way == 2:
        one["piece"] = generator.choice(["..", ".", "/", "/dev", "leaf_0/../..", str(marker), "", "leaf_9", "part_0"])
    elif way == 3:
        key = generator.choice(["piece", "class", "qualname", "module", "leaf", "operator", "results", "arguments"])
        one[key], other[key] = other[key], one[key]
    elif way == 4:
        one[generator.choice(["class", "qualname", "operator"])] = generator.choice(_NAMES)
    elif way == 5:
        one[generator.choice(["module", "leaf"])] = generator.choice([*_NAMES, "", "first", "last", "two.layer"])
    elif way == 6 and content["functions"]:
        function = generator.choice(content["functions"])
        if generator.random() < 0.5:
            function["module"] = generator.choice(_NAMES)
        else:
            step = generator.choice(function["path"])
            step[generator.randrange(len(step))] = generator.choice([*_NAMES, 1, 7, -1])
    else:
        tensor = content["state"][generator.choice(sorted(content["state"]))]
        tensor["shape"] = generator.choice([[2**40, 2**40], [-1], [0], [2**63], [], [1] * 3000])
    path.write_text(json.dumps(manifest))


_NAMES = (
    *("os.system", "subprocess.Popen", "builtins.exec", "torch.load", "torch.nn.Linear", "aten.from_file", "posix"),
    *(
        "tests.system.stress.damage.Payload",
        "tests.system.stress.saved.Other",
        "Half.__init__",
        "__class__",
        "_modules",
        "forward",
    ),
)


ATTACKS: tuple[Callable[[Path, Path, random.Random], None], ...] = (
    *(_bytes, _bytes, _bytes, _numbers, _json, _json, _json),
    *(_nested, _swapped, _payload, _added, _removed, _special, _leaf),
)


def attack(folder: Path, marker: Path, generator: random.Random) -> tuple[str, bool]:
    """Damage a folder; returns what was done, and whether the manifest was made to fit or is itself the place."""
    manifest = (folder / MANIFEST).read_bytes()
    done = generator.choice((*ATTACKS, *[_leaf] * 6) if b'"leaves"' in manifest else ATTACKS)
    done(folder, marker, generator)
    sealed = generator.random() < 0.6
    if sealed:
        reseal(folder)
    path = folder / MANIFEST
    is_same = _is_plain(path) and path.read_bytes() == manifest
    return done.__name__.strip("_"), sealed or not is_same
