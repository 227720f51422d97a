"""Channels in products of matrices."""

from __future__ import annotations

import string
from collections.abc import Callable

from prepbench.adapt.channels.call import Call
from prepbench.adapt.channels.values import Value
from prepbench.adapt.channels.vectors import with_bias


def linear(call: Call) -> Value:
    """``linear``: columns with what enters, rows are new channels."""
    return with_bias(call, _matmul(call, call.needed("input"), _transposed(call.needed("weight"))), "bias")


def product(first: str, second: str, added: str = "") -> Callable[[Call], Value]:
    """``mm``, ``bmm``, ``matmul``, and with something added ``addmm`` and ``baddbmm``."""

    def rule(call: Call) -> Value:
        result = _matmul(call, call.needed(first), call.needed(second))
        return with_bias(call, result, added) if added else result

    return rule


def _matmul(call: Call, one: Value, other: Value) -> Value:
    names, others = _letters(len(one.shape)), _letters(len(other.shape))
    left = f"{names[2:]}ik" if len(one.shape) > 1 else "k"
    right = f"{others[2:]}kj" if len(other.shape) > 1 else "k"
    batch = max(left[:-2], right[:-2], key=len)
    result = batch + ("i" if "i" in left else "") + ("j" if "j" in right else "")
    return call.contracted([(left, one), (right, other)], result, call.shape)


def _letters(rank: int) -> str:
    """Letters for the dims of a matrix, and those of the batch, aligned at the end."""
    return "ij" + string.ascii_uppercase[26 - max(rank - 2, 0) :] if rank > 2 else "ij"


def _transposed(weight: Value) -> Value:
    layers = tuple(layer.transpose(-1, -2) if layer.ndim > 1 else layer for layer in weight.layers)
    shape = (*weight.shape[:-2], *reversed(weight.shape[-2:]))
    return Value(shape, layers, weight.is_weight)


def einsum(call: Call) -> Value | None:
    """``einsum``; None for equations with a letter twice in one operand, which take a diagonal."""
    left, _, result = str(call.given["equation"]).replace(" ", "").partition("->")
    names = left.split(",")
    values = call.listed("tensors")
    if "->" not in str(call.given["equation"]):
        every = "".join(names)
        result = "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    if any("." in each or len(set(each)) < len(each) for each in (*names, result)):
        return None
    return call.contracted(list(zip(names, values, strict=True)), result, call.shape)
