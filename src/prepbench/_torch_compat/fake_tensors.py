"""Fake tensors with symbolic sizes (``torch._subclasses``, ``symbolic_shapes``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import BuiltinFunctionType
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench._torch_compat.sizes import answered, asking_python

with needed_for("tracing with tensors that have sizes but no data"):
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        GuardOnDataDependentSymNode,
        ShapeEnv,
        StatelessSymbolicContext,
    )

    _ = ShapeEnv._maybe_evaluate_static, ShapeEnv.evaluate_expr, ShapeEnv.create_unbacked_symint
    _numbers = ShapeEnv.create_unspecified_symbol, ShapeEnv.create_symintnode
    _memo = inspect.getattr_static(FakeTensor, "item_memo")

# where torch logs what fails on tensors without data
LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
GuardCallback = Callable[[Any], None]


class _WatchedShapeEnv(ShapeEnv):
    """A shape environment that reports each new assumption about sizes when the model makes it."""

    def __init__(self, on_guard: GuardCallback, on_question: GuardCallback, on_answer: GuardCallback) -> None:
        # a value read from a tensor becomes an unknown number instead of an error; only branching on it fails
        super().__init__(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
        self._on_guard = on_guard
        self._on_question = on_question
        self._on_answer = on_answer

    def evaluate_expr(self, *args: Any, **kwargs: Any) -> Any:
        self._on_question(args[0])
        before = len(self.guards)
        result = super().evaluate_expr(*args, **kwargs)
        for guard in self.guards[before:]:
            self._on_guard(guard.expr)
        is_truth = result in (True, False) and getattr(args[0], "free_symbols", None)
        if is_truth and len(self.guards) == before and asking_python() is not None:
            self._on_answer(answered(args[0], bool(result)))
        return result


def symbolic_fake_mode(on_guard: GuardCallback, on_question: GuardCallback, on_answer: GuardCallback) -> FakeTensorMode:
    """Return a fake mode with symbolic sizes; real parameters may be used in it unchanged.

    ``on_guard`` receives each assumption on sizes (a sympy expression) when it is first made; ``on_question`` every
    question about sizes before it is answered. Exceptions that they raise appear at the line of the model that asks.
    ``on_answer`` receives Python's questions that tracing answered by its assumption that sizes are not 0 or 1.
    """
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=_WatchedShapeEnv(on_guard, on_question, on_answer))


def is_open_question(mode: FakeTensorMode, expression: Any) -> bool:
    """Return whether the answer does not follow from the known facts about sizes."""
    return mode.shape_env is None or mode.shape_env._maybe_evaluate_static(expression) is None


def fake_input(mode: FakeTensorMode, tensor: torch.Tensor, hints: dict[int, int], name: str) -> torch.Tensor:
    """Return a fake of ``tensor`` whose dims in ``hints`` are symbolic; each is traced as if it had the hinted size."""
    with needed_for("naming the sizes of inputs"):
        from torch._dynamo.source import ConstantSource
    device = getattr(tensor, _DEVICE, tensor.device)
    base = tensor
    if device != tensor.device or any(tensor.shape[dim] != size for dim, size in hints.items()):
        base = torch.empty(
            [hints.get(dim, size) for dim, size in enumerate(tensor.shape)], dtype=tensor.dtype, device="meta"
        )
    dims = [DimDynamic.DYNAMIC if dim in hints else DimDynamic.STATIC for dim in range(tensor.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
    fake: torch.Tensor = mode.from_tensor(base, source=ConstantSource(name), symbolic_context=context)
    if fake.device != device:
        with mode:
            fake = torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device=device)
    fake.item_memo = None  # type: ignore[attr-defined]  # torch would take the number in an input for granted
    return fake.requires_grad_(tensor.requires_grad) if fake.is_leaf else fake


_NUMBER = "_prepbench_number"


def readable_number(mode: FakeTensorMode, fake: torch.Tensor, value: int, name: str) -> Any:
    """Make the integer or bool in a fake tensor of one element readable, as a symbol with the hint ``value``.

    Returns:
        The symbol. What is asked about it is a question like those about sizes.
    """
    with needed_for("naming the numbers of inputs"):
        from torch._dynamo.source import CallMethodItemSource, ConstantSource
    assert mode.shape_env is not None
    source = CallMethodItemSource(ConstantSource(name))
    symbol = mode.shape_env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    number = mode.shape_env.create_symintnode(symbol, hint=value, source=source)
    fake.item_memo = number == 1 if fake.dtype is torch.bool else number  # type: ignore[attr-defined]
    setattr(fake, _NUMBER, symbol)
    return symbol


def symbols_of(fake: torch.Tensor) -> list[Any]:
    """Return the symbols for the sizes of a fake tensor, and for the number in it."""
    sizes = [getattr(getattr(size, "node", None), "_expr", None) for size in fake.shape]
    return [symbol for symbol in (*sizes, getattr(fake, _NUMBER, None)) if symbol is not None]


_DEVICE = "_prepbench_device"


def on_device(meta_tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Mark a meta tensor as standing for one on ``device``; :func:`fake_input` makes fakes there."""
    setattr(meta_tensor, _DEVICE, device)
    return meta_tensor


def device_of(tensor: torch.Tensor) -> torch.device:
    """Return the device from :func:`on_device`, or the tensor's own."""
    device: torch.device = getattr(tensor, _DEVICE, tensor.device)
    return device


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether this tensor has sizes but no data."""
    return isinstance(tensor, FakeTensor)


def fresh_size(mode: FakeTensorMode) -> torch.SymInt:
    """Return a size without any known bound."""
    assert mode.shape_env is not None
    size: torch.SymInt = mode.shape_env.create_unbacked_symint()
    torch._check(size >= 0)
    return size


def symbolic_kernels() -> AbstractContextManager[Any]:
    """Use torch's Python kernels where it has them; the C++ ones of padding and resizing fix symbolic sizes."""
    context: AbstractContextManager[Any] = enable_python_dispatcher()
    return context


def needs_data(error: Exception) -> bool:
    """Return whether a fake tensor was asked for its values, so that no other way of tracing can succeed."""
    return isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException | DynamicOutputShapeException)


def without_data(function: Any) -> Any:
    """Return the replacement, for tensors without data, of a torch function that reads sizes from data."""
    with needed_for("tracing packed sequences"):
        own: dict[Any, Any] = {torch._VF._pack_padded_sequence: _pack, torch._VF._pad_packed_sequence: _pad}
    return own.get(function, function) if isinstance(function, BuiltinFunctionType) else function


def _pack(x: Any, lengths: Any, batch_first: bool) -> Any:
    rows, longest = fresh_size(x.fake_mode), fresh_size(x.fake_mode)
    torch._check(longest <= x.shape[1 if batch_first else 0])
    return x.new_empty((rows, *x.shape[2:])), lengths.new_empty((longest,))


def _pad(data: Any, batch_sizes: Any, batch_first: bool, padding: float, length: Any) -> Any:
    batch = fresh_size(data.fake_mode)
    sizes = (batch, length) if batch_first else (length, batch)
    return data.new_empty((*sizes, *data.shape[1:])), batch_sizes.new_empty((batch,))
