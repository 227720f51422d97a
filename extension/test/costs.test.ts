import { expect, it } from "vitest";

import { barsOf, NAMED } from "../src/bench/costs";

it("the largest shares come first, unknown ones not at all", () => {
  const bars = barsOf({ values: [1, null, 4, 0, 2], worst: "greatest" });
  expect(bars.map(({ layer }) => layer)).toEqual([2, 4, 0, 3]);
  expect(bars.map(({ share }) => share)).toEqual([1, 0.5, 0.25, 0]);
});

it("where the least is the worst, a bar says how far it is from the best", () => {
  const bars = barsOf({ values: [40, 20, 30], worst: "least" });
  expect(bars.map(({ layer }) => layer)).toEqual([1, 2, 0]);
  expect(bars.map(({ share }) => share)).toEqual([1, 0.5, 0]);
});

it("no more than ten have a bar, and equal ones have equal bars", () => {
  expect(barsOf({ values: Array.from({ length: 40 }, (_, at) => at), worst: "greatest" })).toHaveLength(NAMED);
  expect(barsOf({ values: [7, 7], worst: "least" }).map(({ share }) => share)).toEqual([1, 1]);
  expect(barsOf({ values: [0, 0], worst: "greatest" }).map(({ layer }) => layer)).toEqual([0, 1]);
  expect(barsOf({ values: [null], worst: "least" })).toEqual([]);
});
