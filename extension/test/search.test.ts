import { expect, it } from "vitest";

import { boundOf } from "../src/bench/search";

it("reads a bound as people write it, and nothing as no bound", () => {
  expect(boundOf(" 0.01 ")).toBe(0.01);
  expect(boundOf("1,5")).toBe(1.5);
  expect(boundOf("0")).toBe(0);
  expect(boundOf("")).toBeNull();
  expect(boundOf("soon")).toBeNull();
});
