"""``load_compiled``: read the files of ``CompiledModel.save``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prepbench.calls.call_spec import CallSpec
from prepbench.checks import check_function, check_path, check_switch
from prepbench.errors import ArtifactError, PrepbenchError, sentence
from prepbench.generate.transformers_style import SECTION as CONFIGURATION
from prepbench.generate.transformers_style import check_configuration
from prepbench.internal_errors import raise_if_internal, tells_internal_errors
from prepbench.package.artifact import read_manifest
from prepbench.package.compiled import CompiledModel
from prepbench.package.leaves.model_leaves import SECTION, check_model_given, check_section, load_leaves
from prepbench.package.manifest_check import check_calls, check_report, check_variants
from prepbench.package.report import CompileReport
from prepbench.package.variants import SECTION as VARIANTS
from prepbench.package.variants import joined_runtime, loaded_variants, variant_folder
from prepbench.running.tracing import tracing
from prepbench.storage import nothing_left, temporary_space
from prepbench.targets import target_named
from prepbench.targets.base import Trust
from prepbench.targets.partition import is_partitioned, load_partitioned


@tells_internal_errors
def load_compiled(
    folder: str | Path,
    *,
    model: Any = None,
    forward_fn: Callable[..., Any] | None = None,
    allow_code: bool = False,
) -> CompiledModel:
    """Read a model that :meth:`CompiledModel.save` wrote; needs neither the original's class nor its code, unless
    parts of it run in Python.

    Nothing in the folder is executed, and nothing that it names is imported, whoever wrote it. Machine code is the
    exception that needs your consent.

    A model that was compiled with ``fullgraph=False`` may have parts that run in Python. Their code is that of
    ``model``, which is checked against digests in the folder: the classes, the lines, and the tensors of its
    checkpoint must be those that were compiled. Its plain attributes, and functions that these lines call, are not
    compared. The loaded model has modules of its own around the same parameters, in the mode that was compiled, and
    keeps them alive.

    Results have the structure that the original returns. A dataclass or a named tuple comes back as such if it belongs
    to ``transformers`` or to a module that you have imported; its ``__init__`` and ``__post_init__`` do not run.
    Otherwise a named tuple becomes one of the same fields, and an object a dict of its tensors and of its attributes
    that are None, numbers or text.

    Args:
        folder: what ``save`` wrote.
        model: what was compiled, with its checkpoint loaded, where parts of it run in Python; the message without it
            says which. It is not changed.
        forward_fn: the one of :func:`compile_model`, where lines of it run in Python, or of methods that only it calls.
        allow_code: also load what is code: the package of a model compiled by Inductor, and programs that call
            operators which somebody registered in this process. Set it for folders that you trust like a program.

    Returns:
        The model, which runs as it did when it was saved.

    Raises:
        ArtifactError: the folder is damaged, incomplete, of another major version, or holds code and ``allow_code``
            is false; or it needs the model, and there is none or another one: a class, a line or a tensor differs.
        SettingsError: a model or ``forward_fn`` is handed in and nothing of it is needed.
        MissingPackageError: its target's package is not installed.

    Example:
        >>> compiled = load_compiled("model-int8")
        >>> load_compiled("model-partly", model=partly)  # parts of it run in Python
    """
    check_path("folder", folder)
    check_switch("allow_code", allow_code)
    check_function("forward_fn", forward_fn, "forward_fn(model, args, kwargs)", optional=True)
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        target = target_named(manifest["target"])
        settings = target.settings_type.from_dict(manifest["deployment_settings"])
        check_calls(manifest["calls"])
        check_report(manifest["report"])
        rows = manifest.get(VARIANTS, [])
        check_variants(rows, len(manifest["calls"].get("variants", [])))
        call_spec, report = CallSpec.from_dict(manifest["calls"]), CompileReport.from_dict(manifest["report"])
        variants = loaded_variants(call_spec, rows)
        configuration = manifest.get(CONFIGURATION, {})
        check_configuration(configuration)
        content = manifest.get(SECTION)
        if content is not None:
            check_section(content)
    except Exception as error:
        raise ArtifactError(
            f"{folder}: the manifest is damaged ({type(error).__name__}: {sentence(error)}). Save the model again."
        ) from error
    check_model_given(content, model, folder, forward_fn=forward_fn, allow_code=allow_code)
    target.check_available()
    load = partial(load_partitioned, target) if is_partitioned(folder) else target.load
    try:
        with nothing_left(), tracing(), temporary_space():
            texts = [value for value in call_spec.input_constants.values() if isinstance(value, str)]
            found = None if content is None else load_leaves(content, model, folder, texts, forward_fn)
            trust = Trust(allow_code) if found is None else Trust(allow_code, found.operators)
            places = [variant_folder(folder, index) for index in range(len(rows))] or [folder]
            runtimes = [load(place, settings, trust) for place in places]
    except PrepbenchError:
        raise
    except Exception as error:  # of the runtime's own kinds
        raise_if_internal(error)
        raise ArtifactError(
            f"{folder}: {target.display_name} cannot read its files ({type(error).__name__}: {sentence(error)}) Copy "
            "the folder again, or compile and save the model again."
        ) from error
    leaves = None if found is None else found.leaves
    given: dict[str, Any] = {"leaves": leaves, "configuration": configuration, "variants": variants}
    return CompiledModel(joined_runtime(runtimes, call_spec), call_spec, settings, report, **given)
