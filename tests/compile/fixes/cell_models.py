"""Models of many shapes for cells: a number in the source of each is changed, and the cell must do so in a model."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
LIMIT = 1.5


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + 101

    @staticmethod
    def backward(ctx, grad):
        return grad


class WithAutogradFunction(nn.Module):
    def forward(self, x):
        return Rounded.apply(x)


class WithNestedClass(nn.Module):
    class Inner(nn.Module):
        SHIFT = 0

        def forward(self, x, more=SHIFT):
            return x + 102 + more

    def __init__(self):
        super().__init__()
        self.a = self.Inner()

    def forward(self, x):
        return self.a(x)


def local_class(scale):
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Identity()

        def forward(self, x):
            return self.fc(x) * scale + 103

    return Local()


class Shifted(nn.Module):
    def forward(self, x):
        return x + 104


def local_subclass():
    class Local(Shifted):
        def forward(self, x):
            return super().forward(x)

    return Local()


@dataclass(frozen=True)
class Config:
    limit: float = 1.0
    names: list[str] = field(default_factory=list)

    def moved(self, x):
        return x + 105 * self.limit


class WithDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()

    def forward(self, x):
        return self.config.moved(x)


class SharedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = OnlyMoves()
        self.second = self.first

    def forward(self, x):
        return self.second(x)


class OnlyMoves(nn.Module):
    def forward(self, x):
        return x + 106


class Base(nn.Module):
    def forward(self, x):
        return x + 107


class Middle(Base):
    def forward(self, x, flag=True):
        return super().forward(x) * 1


class Inherits(Middle):
    def forward(self, x):
        return super().forward(x)


def doubled(function):
    @functools.wraps(function)
    def wrapper(self, x):
        return function(self, x)

    return wrapper


def times(factor):
    def decorate(function):
        def inner(*args):
            return function(*args) * factor

        return inner

    return decorate


class Decorated(nn.Module):
    @doubled
    def forward(self, x):
        return x + 108


class DecoratedTwice(nn.Module):
    @torch.no_grad()
    @times(1)
    def forward(self, x):
        return x + 109


def helper(x, limit=LIMIT):
    return x + 110 + 0 * limit


def outer_helper(x):
    return helper(x)


class WithHelpers(nn.Module):
    def forward(self, x):
        return outer_helper(x)


class WithPartial(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = functools.partial(outer_partial, limit=0.5)

    def forward(self, x):
        return self.f(x)


def outer_partial(x, limit):
    return x + 111 + 0 * limit


class WithLambdas(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = [lambda t: t * 1, lambda t, k=F.relu: k(t) + 112]
        self.by_name = {"none": (lambda t: t, lambda t: t)}

    def forward(self, x):
        return self.by_name["none"][1](self.steps[1](x))


class WithTupleOfLambdas(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = (lambda t: t, lambda t: t + 113)

    def forward(self, x):
        return self.steps[1](x)


class WithGeneric(nn.Module, Generic[T]):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out: dict[str, Any] = {"y": x + 114}
        return out["y"]


class WithProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self._shift = 0

    @property
    def shift(self):
        return self._shift + 115

    @shift.setter
    def shift(self, value):
        self._shift = value

    def forward(self, x):
        self.shift = 0
        return x + self.shift


class WithClassMethods(nn.Module):
    ONE = 1

    @staticmethod
    def moved(x):
        return x + 116

    @classmethod
    def scaled(cls, x):
        return x * cls.ONE

    def forward(self, x):
        return self.scaled(self.moved(x))


class WithContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.list = nn.ModuleList([Part(), nn.Identity()])
        self.dict = nn.ModuleDict({"a": nn.Sequential(nn.Identity())})

    def forward(self, x):
        return self.dict["a"](self.list[0](x))


class Part(nn.Module):
    def forward(self, x):
        return x + 117


class WithPlainList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [InPlainList()]  # not registered

    def forward(self, x):
        return self.layers[0](x)


class InPlainList(nn.Module):
    def forward(self, x):
        return x + 118


class WithPrivateNames(nn.Module):
    __one = 1

    def __moved(self, x):
        return x * self.__one + 119

    def forward(self, x):
        return self.__moved(x)


class Mixin:
    def moved(self, x):
        return x + 120


class MixesIn(Mixin):
    def moved(self, x):
        return super().moved(x)


class WithMixins(MixesIn, nn.Module):
    def forward(self, x):
        return self.moved(x)


class WithCallable(nn.Module):
    class Mover:
        def __call__(self, x):
            return x + 121

    def __init__(self):
        super().__init__()
        self.mover = WithCallable.Mover()

    def forward(self, x):
        return self.mover(x)


class WithBoundMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.chosen = self._move

    def _move(self, x):
        """Moves.

        The text stands further left."""
        return x + 122

    def forward(self, x):
        return self.chosen(x)


def closure(shift, function):
    def run(x):
        return function(x) + shift + 123

    return run


class WithClosures(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.f = closure(0, self.inner)

    def forward(self, x):
        return self.f(x)


class WithHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.inner.register_forward_hook(lambda module, args, output: output + 124)

    def forward(self, x):
        return self.inner(x)


shifted_globally = closure(2, torch.relu)


class WithGlobalClosure(nn.Module):
    def forward(self, x):
        return shifted_globally(x) - 2


def kept(x, seen=[]):  # noqa: B006
    seen.append(1)
    return x + 126


class WithKeptDefault(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = kept

    def forward(self, x):
        return self.f(x)


SHAPES: dict[str, tuple[Any, int]] = {
    each.__name__: (each, number)
    for each, number in (
        (WithAutogradFunction, 101), (WithNestedClass, 102), (local_subclass, 104), (WithDataclass, 105),
        (SharedModule, 106), (Inherits, 107), (Decorated, 108), (DecoratedTwice, 109), (WithHelpers, 110),
        (WithPartial, 111), (WithLambdas, 112), (WithTupleOfLambdas, 113), (WithGeneric, 114), (WithProperty, 115),
        (WithClassMethods, 116), (WithContainers, 117), (WithPlainList, 118), (WithPrivateNames, 119),
        (WithMixins, 120), (WithCallable, 121), (WithBoundMethod, 122), (WithClosures, 123), (WithHook, 124),
        (WithGlobalClosure, 123), (WithKeptDefault, 126),
    )
}  # fmt: skip
"""What makes each model, and the number that is changed in its source."""
