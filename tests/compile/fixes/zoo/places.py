"""The branch stands elsewhere than in the forward of the module: in a base class, method, helper, lambda or closure."""

from __future__ import annotations

from torch import nn

from tests.compile.fixes.zoo.case import case, images, rows


class _Base(nn.Module):
    def forward(self, x):
        if x.sum() < 0:
            x = -x
        return x


@case(rows())
class Inherited(_Base):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(10, 10)

    def forward(self, x):
        return self.proj(super().forward(x))


@case(rows())
class OverriddenWithSuper(_Base):
    def forward(self, x):
        x = super().forward(x * 2)
        if x.max() > 3:
            x = x / x.max()
        return x


def soft_clip(x, limit=2.0):
    """A helper in the same file."""
    peak = x.abs().max()
    if peak > limit:
        return x * (limit / peak)
    return x


@case(rows())
class InHelper(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 5)

    def forward(self, x):
        return self.fc(soft_clip(x))


@case(rows())
class InMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 5)

    def _scale(self, x):
        if x.std() > 1.0:
            return x / x.std()
        return x

    def forward(self, x):
        return self.fc(self._scale(x))


@case(rows())
class InLambda(nn.Module):
    def __init__(self):
        super().__init__()
        self.fix_sign = lambda t: t if t.sum() > 0 else -t

    def forward(self, x):
        return self.fix_sign(x) + 1


def make_threshold(limit):
    def apply(x):
        if x.mean() > limit:
            return x - limit
        return x

    return apply


@case(rows())
class InClosure(nn.Module):
    def __init__(self):
        super().__init__()
        self.apply_limit = make_threshold(0.05)

    def forward(self, x):
        return self.apply_limit(x).relu()


@case(rows())
class InLocalFunction(nn.Module):
    def forward(self, x):
        def pick(t):
            return t.exp() if t.max() < 3 else t

        return pick(x) + pick(x * 2)


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        if y.abs().mean() > 0.5:
            y = y * 0.5
        return x + y


@case(images)
class SharedClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(_Block(), _Block(), _Block())

    def forward(self, x):
        return self.blocks(x).mean((2, 3))
