"""The best mixture by what the tables say, against all mixtures."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from types import SimpleNamespace

import pytest

import prepbench as pb
from prepbench.measure.profile import Profile, ProfileRow
from prepbench.search.measuring import UniformModel, is_conversion, profiled_times, times_of
from prepbench.search.mixtures import FLOAT, Mixture
from prepbench.search.objective import SearchCandidate
from prepbench.search.states import TargetState, solve
from prepbench.search.tables import (
    CONVERSION,
    CONVERTED_BYTE,
    REST,
    Corrected,
    DropCurve,
    Estimate,
    Neighbours,
    Reading,
    Shrinking,
    Tables,
)
from prepbench.targets.kernel_times import CONVERSIONS

LAYERS = tuple("abcdef")
CHOICES = (FLOAT, "int8", "int4")


def tables(seed: int) -> Tables:
    draw = random.Random(seed)
    neighbours = tuple(Neighbours(one, other, 1000) for one, other in itertools.pairwise(LAYERS))
    times = {(fqn, name): draw.uniform(1, 2) / (1 + at) for fqn in LAYERS for at, name in enumerate(CHOICES)}
    noise = {(fqn, name): 0.01 * at**3 * draw.uniform(0.1, 2) for fqn in LAYERS for at, name in enumerate(CHOICES)}
    sizes = {(fqn, name): 4.0 / (4 * at or 1) for fqn in LAYERS for at, name in enumerate(CHOICES)}

    def known(values: dict, **more: float) -> Corrected:
        return Corrected({part: Estimate(value, 0.1) for part, value in {**values, **more}.items()})

    return Tables(
        layers=LAYERS,
        choices=CHOICES,
        types={FLOAT: "float", "int8": "int8", "int4": "float"},
        refused={("f", "int4"): "too small"},
        groups=(frozenset("bc"),),
        neighbours=neighbours,
        times=known({**times, REST: 1.0, CONVERSION: 0.1, CONVERTED_BYTE: 1e-4}),
        sizes=known({**sizes, REST: 2.0}),
        noise=known(noise),
        curve=DropCurve.through([(0.0, 0.0), (1.0, 1.0)]),
    )


def possible(known: Tables) -> list[Mixture]:
    every = itertools.product(CHOICES, repeat=len(LAYERS))
    return [one for one in every if one[1] == one[2] and one[5] != "int4"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.1, 0.3, 0.8])
def test_the_fastest_within_a_bound_of_noise(seed: int, share: float) -> None:
    known = tables(seed)
    bound = share * known.noise_of(("int8",) * 6)
    found = solve(known, "latency", {"drop": bound})
    best = min((one for one in possible(known) if known.noise_of(one) <= bound), key=known.seconds)
    assert found is not None
    assert known.noise_of(found) <= bound * (1 + 1e-9)
    assert known.seconds(found) <= known.seconds(best) * 1.002  # a quieter one of nearly the same time may be taken


@pytest.mark.parametrize("seed", range(4))
def test_the_doubt_of_a_mixture_beside_another_is_that_of_their_difference(seed: int) -> None:
    state, draw = TargetState("", tables(seed)), random.Random(seed)
    for one, other in (draw.sample(possible(state.tables), 2) for _ in range(8)):
        assert state.doubt(one, one) == pytest.approx(0.0, abs=1e-6)
        assert state.doubt(one, other) == pytest.approx(state.doubt(other, one))
        assert 0 < state.doubt(one, other) <= state.doubt(one, None) + state.doubt(other, None)


def test_a_time_that_is_known_corrects_the_tables_once() -> None:
    state, scale, mixture = TargetState("", tables(0)), SimpleNamespace(), ("int8",) * 6
    candidate = SearchCandidate("", "", {}, predicted_ms=1.0, ms=4.0, size_bytes=9)
    once = state.with_measured(mixture, candidate, scale)  # type: ignore[arg-type]
    again = once.with_measured(mixture, candidate, scale, again=True)  # type: ignore[arg-type]
    assert (len(once.tables.times.measured), len(once.tables.sizes.measured)) == (1, 1)
    assert once.surprise == 2.0
    assert (again.surprise, again.tables.times, again.tables.sizes) == (2.0, once.tables.times, once.tables.sizes)
    assert again.measured == {mixture: candidate}


def pruned_tables(seed: int) -> Tables:
    """Where ``int4`` also removes channels: a and d make the same ones, b reads them, and c reads those of f."""
    draw, known = random.Random(seed), tables(seed)
    loss = {frozenset((("a", "int4"), ("d", "int4"))): Estimate(0.03, 0.01)}
    shrinking = Shrinking(
        {"int4": pb.PruningSettings(mask_type="channels")},
        (frozenset("ad"),),
        tuple(
            Reading(maker, reader, {("int4", name): -draw.uniform(0.1, 0.6) for name in (FLOAT, "int8")})
            for maker, reader in ("ab", "ec")
        ),
    )
    noise = Corrected({**known.noise.estimates, **loss})
    return dataclasses.replace(
        known,
        noise=noise,
        rounded={part: part for part in loss},
        bits={"int4": "int8"},
        groups=(),
        shrinking=shrinking,
    )


@pytest.mark.parametrize("goal", ["latency", "drop"])
@pytest.mark.parametrize("seed", range(6))
def test_equalised_channels_are_those_of_a_mixture_and_cost_no_time(seed: int, goal: str) -> None:
    draw, known = random.Random(seed), tables(seed)
    noise = {(fqn, "scaled"): Estimate(0.01 * draw.uniform(0.1, 2), 0.1) for fqn in LAYERS}
    known = dataclasses.replace(
        known,
        choices=(*CHOICES, "scaled"),
        types={**known.types, "scaled": "int8"},
        noise=Corrected({**known.noise.estimates, **noise}),
        kernels={"int8": "int8", "int4": "int4", "scaled": "int8"},
    )
    every = [
        one
        for one in itertools.product(known.choices, repeat=len(LAYERS))
        if one[1] == one[2] and one[5] != "int4" and not {"int8", "scaled"} <= set(one)
    ]
    assert known.mixes(("int8", "scaled", *["int8"] * 4))
    assert not any(map(known.mixes, every))
    plain, scaled = (("int4", FLOAT, FLOAT, name, name, name) for name in ("int8", "scaled"))
    assert known.seconds(plain) == known.seconds(scaled)
    assert known.kernels_of(plain) == known.kernels_of(scaled)
    of = {"latency": known.seconds, "drop": known.noise_of}
    limits = {name: 0.6 * min(map(of[name], every)) + 0.4 * max(map(of[name], every)) for name in of}
    del limits[goal]
    found = solve(known, goal, limits)
    best = min((one for one in every if all(of[name](one) <= limit for name, limit in limits.items())), key=of[goal])
    assert found in every
    assert of[goal](found) == pytest.approx(of[goal](best), rel=2e-3)
    assert all(of[name](found) <= limit * (1 + 1e-9) for name, limit in limits.items())


@pytest.mark.parametrize("goal", ["latency", "size", "drop"])
@pytest.mark.parametrize("seed", range(8))
def test_channels_that_go_count_in_all_that_makes_and_reads_them(seed: int, goal: str) -> None:
    known = pruned_tables(seed)
    every = itertools.product(CHOICES, repeat=len(LAYERS))
    possible = [one for one in every if (one[0] == "int4") == (one[3] == "int4") and one[5] != "int4"]
    assert all(known.shrinking.is_possible(dict(zip(LAYERS, one, strict=True))) for one in possible)
    pruned = ("int4", FLOAT, FLOAT, "int4", FLOAT, FLOAT)
    assert known.parts(pruned)["b", FLOAT] == pytest.approx(1 + known.shrinking.readings[0].more["int4", FLOAT])
    assert known.noise_of(pruned) == pytest.approx(
        0.03 + known.noise.size(("a", "int8")) + known.noise.size(("d", "int8"))
    )
    of = {"latency": known.seconds, "size": known.size, "drop": known.noise_of}
    bounds = {name: 0.6 * min(map(of[name], possible)) + 0.4 * max(map(of[name], possible)) for name in of}
    del bounds[goal]
    within = [one for one in possible if all(of[name](one) <= bound for name, bound in bounds.items())]
    found = solve(known, goal, bounds)
    if not within:
        assert found is None
        return
    assert found in within
    assert of[goal](found) <= min(map(of[goal], within)) * 1.002


@pytest.mark.parametrize("goal", ["latency", "size", "drop"])
@pytest.mark.parametrize("seed", range(4))
def test_a_value_that_is_rounded_for_two_layers_counts_once(seed: int, goal: str) -> None:
    known = tables(seed)
    rounded = {
        f"value {at}": frozenset(itertools.product(pair, ("int8",))) for at, pair in enumerate(("ab", "bc", "de"))
    }
    sizes = {**known.noise.estimates, **dict.fromkeys(rounded, Estimate(0.02, 0.01))}
    known = dataclasses.replace(known, noise=Corrected(sizes), rounded=rounded)
    alone = [tuple("int8" if fqn == one else FLOAT for fqn in LAYERS) for one in "de"]
    both = tuple("int8" if fqn in "de" else FLOAT for fqn in LAYERS)
    assert known.noise_of(both) == pytest.approx(sum(map(known.noise_of, alone)) - 0.02)
    bounds = {"drop": 0.4 * known.noise_of(("int8",) * 6), "size": 0.9 * known.size((FLOAT,) * 6)}
    of = {"latency": known.seconds, "size": known.size, "drop": known.noise_of}[goal]
    within = [
        one
        for one in possible(known)
        if (goal == "drop" or known.noise_of(one) <= bounds["drop"])
        and (goal == "size" or known.size(one) <= bounds["size"])
    ]
    found = solve(known, goal, bounds)
    assert found in within
    assert of(found) <= min(map(of, within)) * 1.002


def test_conversions_keep_neighbours_together() -> None:
    known = tables(0)
    found = known.time_parts(("int8", FLOAT, FLOAT, "int4", "int8", "int8"))
    assert found[CONVERSION] == 2
    assert found[CONVERTED_BYTE] == 2000


@pytest.mark.parametrize("goal", ["size", "drop"])
def test_a_bound_of_time_counts_conversions(goal: str) -> None:
    known = tables(1)
    limit = 1.02 * min(map(known.seconds, possible(known)))
    found = solve(known, goal, {"latency": limit})
    assert found is not None
    assert known.seconds(found) <= limit
    assert solve(known, goal, {"latency": 0.5 * limit}) is None


def test_what_was_tried_is_left_out_and_nothing_else() -> None:
    known, tried = tables(2), []
    for _ in range(4):
        found = solve(known, "latency", {}, tried)
        assert found is not None
        assert found not in tried
        tried.append(found)
    assert [known.seconds(one) for one in tried] == sorted(map(known.seconds, tried))


def test_the_front_goes_from_quiet_to_fast() -> None:
    known = tables(3)
    found = TargetState("", known).front("latency", 8)
    assert (FLOAT,) * 6 in found
    assert min(map(known.seconds, found)) == pytest.approx(min(map(known.seconds, possible(known))), rel=2e-3)
    assert len(found) > 3


def test_measured_sums_correct_the_tables() -> None:
    known, mixture = tables(4), ("int8",) * 6
    corrected = known.with_measured(mixture, seconds=10.0, size=12.0, noise=math.inf)
    assert abs(corrected.seconds(mixture) - 10.0) < abs(known.seconds(mixture) - 10.0) / 2
    assert abs(corrected.size(mixture) - 12.0) < abs(known.size(mixture) - 12.0) / 2
    assert corrected.noise_of(mixture) == known.noise_of(mixture)  # infinity says nothing about sums


def test_a_profile_tells_what_layers_and_conversions_take() -> None:
    known, mixture = tables(5), ("int8", FLOAT, "int8", "int8", "int8", "int8")
    rows = [ProfileRow(fqn, True, "Linear", 1.0, 0.1, None, None, ()) for fqn in LAYERS]
    rows.append(ProfileRow(CONVERSIONS, False, "", 4.0, 0.4, None, None, ()))
    found = profiled_times(known, mixture, UniformModel(0.02, Profile(tuple(rows), 10.0, "target", 1)))
    layers = {part: one.value for one in found for part in one.parts if not is_conversion(part)}
    assert layers == pytest.approx(dict.fromkeys(zip(LAYERS, mixture, strict=True), 0.002))
    [conversions] = [one for one in found if all(map(is_conversion, one.parts))]
    assert conversions.value == pytest.approx(0.008)
    assert conversions.parts[CONVERSION] == 2  # before and behind what is in float
    assert profiled_times(known, mixture, UniformModel(0.02, None)) == []


def test_conversions_that_were_not_measured_do_not_keep_mixtures_from_being_tried() -> None:
    """A layer that saves a tenth of a millisecond beside values of 200 kB, as one thread converts them."""
    between = (Neighbours("a", "b", 200_000), Neighbours("b", "c", 200_000))
    rows = {FLOAT: (1.0, 1.0, 1.0), "int8": (1.0, 0.9, 1.0)}
    uniform = {
        name: UniformModel(
            sum(each) / 1e3, Profile(tuple(layer(*one) for one in zip("abc", each, strict=True)), sum(each), "", 1)
        )
        for name, each in rows.items()
    }
    times, _ = times_of("abc", uniform, between, {})
    known = dataclasses.replace(tables(0), layers=tuple("abc"), neighbours=between, times=times)
    assert known.seconds((FLOAT, "int8", FLOAT)) < known.seconds((FLOAT,) * 3)


def layer(fqn: str, ms: float) -> ProfileRow:
    return ProfileRow(fqn, True, "Linear", ms, ms / 3, None, None, ())
