"""Bad arguments are errors that say what to give."""

from __future__ import annotations

import pytest

from prepbench.errors import CaptureError, InputError
from prepbench.prepare import fold_batch_norm_, prepare_model, run_passes
from tests.compile.prepare.models import Block, Custom, Gate, x


def test_bad_arguments() -> None:
    model = Custom()
    with pytest.raises(InputError, match="modules_to_exclude is a list, got Gate"):
        prepare_model(model, modules_to_exclude=model.custom)
    with pytest.raises(InputError, match="passes is a list"):
        run_passes(prepare_model(model), fold_batch_norm_)
    with pytest.raises(InputError, match="run_passes takes what prepare_model returns, got Custom"):
        run_passes(model, [fold_batch_norm_])
    with pytest.raises(InputError, match=r"model must be a torch\.nn\.Module.*Give prepare_model"):
        prepare_model(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"modules_to_exclude\[0\], a Gate, is not part of this Custom"):
        prepare_model(model, modules_to_exclude=[Gate()])
    with pytest.raises(InputError, match=r"modules_to_exclude\[0\] is 'custom'.*get_submodule"):
        prepare_model(model, modules_to_exclude=["custom"])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"module_classes_to_exclude\[0\], Block, is the class of no submodule"):
        prepare_model(model, module_classes_to_exclude=[Block])
    with pytest.raises(InputError, match=r"inputs\[1\]"):
        prepare_model(model, inputs=[x(1, 3, 5, 5), (x(1, 3, 5, 5), 3)])
    with pytest.raises(CaptureError, match=r"itself raises on inputs\[0\]"):
        prepare_model(model, inputs=[x(1, 5, 5, 5)])
