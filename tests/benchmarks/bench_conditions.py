"""What ten conditions on sizes cost in each call of a compiled model, beside reading the sizes and doing nothing."""

from __future__ import annotations

import timeit

import sympy
import torch

from prepbench.calls.call_spec import SizeChecks
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.capture.sizes.size_formulas import formula_text

LIMIT = 2e-6
CALLS, ROUNDS = 20_000, 9


def ten_conditions() -> list[SizeCondition]:
    """Bounds, multiples, and comparisons of three sizes of two tensors."""
    batch, length, other = sympy.symbols("batch length other", integer=True, positive=True)
    places = {batch: (0, 0), length: (0, 1), other: (1, 1)}
    asked = [
        *(length > bound for bound in (1, 2, 3)),
        *(length < bound for bound in (512, 4096)),
        sympy.Eq(sympy.Mod(length, 4), 0),
        batch < length,
        sympy.Eq(length, other),
        batch + length <= 9000,
        sympy.Ne(sympy.floor(length / 8), 1),
    ]
    found = []
    for expression in asked:
        symbols = sorted(expression.free_symbols, key=str)
        text = formula_text(expression, symbols)
        assert text is not None
        where = tuple(places[symbol] for symbol in symbols)
        found.append(SizeCondition("", tuple(map(str, symbols)), None, text, where))
    return found


def main() -> int:
    """Print the fastest round; 1 above the limit."""
    check, call = SizeChecks(ten_conditions()), [torch.ones(2, 64), torch.ones(2, 64)]
    check(call)
    reading = min(timeit.repeat(lambda: [leaf.shape for leaf in call], number=CALLS, repeat=ROUNDS)) / CALLS
    checking = min(timeit.repeat(lambda: check(call), number=CALLS, repeat=ROUNDS)) / CALLS
    word = "PASS" if checking < LIMIT else "FAIL"
    print(f"{word}  ten conditions: {checking * 1e6:.2f} us a call (limit {LIMIT * 1e6:.0f} us)")
    print(f"      reading the sizes of two tensors alone: {reading * 1e6:.2f} us")
    return int(checking >= LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
