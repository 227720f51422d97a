"""What a version of transformers with other caches costs: graphs for all windows, and nothing else."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from prepbench.objects.caches import transformers as caches
from prepbench.objects.caches.transformers import missing_parts, one_answer_for_all_sizes, replaceable_parts

cache_utils = pytest.importorskip("transformers.cache_utils")
masking_utils = pytest.importorskip("transformers.masking_utils")


@pytest.fixture(autouse=True)
def _said_again() -> None:
    caches._say.cache_clear()


def test_the_version_that_is_here_has_all_parts() -> None:
    assert missing_parts() == []
    assert set(replaceable_parts()) == set(caches._PARTS)


def _with_positions(layer: Any, cache_position: Any) -> tuple[int, int]:
    return 1, 0


class _OtherWindow:
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return 1, 0


OTHER: list[tuple[Any, str, Any, str]] = [
    (masking_utils, "_ignore_causal_mask_sdpa", None, "causal mask"),
    (masking_utils, "prepare_padding_mask", lambda mask, length: mask, "padding mask"),
    (cache_utils.DynamicSlidingWindowLayer, "get_mask_sizes", _with_positions, "window"),
    (cache_utils, "DynamicSlidingWindowLayer", _OtherWindow, "window"),
    (cache_utils, "StaticSlidingWindowLayer", None, "static window"),
]


@pytest.mark.parametrize(("owner", "name", "other", "key"), OTHER, ids=[f"{o[1]}" for o in OTHER])
def test_another_form_of_a_part_is_left_alone_and_said_once(
    owner: Any, name: str, other: Callable[..., Any] | None, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if other is None:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, other)
    assert len(missing_parts()) == 1
    with pytest.warns(UserWarning, match=r"transformers \S+ has another form of .*tested with transformers 5"):
        assert set(replaceable_parts()) == set(caches._PARTS) - {key}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with one_answer_for_all_sizes():
            if other is not None:
                assert inspect.getattr_static(owner, name) is other
