import { expect, it } from "vitest";

import { fillOf } from "../src/bench/numbers";

it.each([
  ["float", "float32"],
  ["3 × int8", "int8"],
  ["int8 weights, blocks of 32", "int8"],
  ["int8 or int4 weights", "int4"],
  ["int8, int16 activations", "int8"],
  ["bf16", "float16"],
  ["4 bits", "int4"],
  ["4 or 8 bits, to be measured", "int8"],
  ["int4 weights, stored in 8 bits", "int4"],
  ["layer4: not called", "float32"],
])("%s has the colour of %s", (label, fill) => expect(fillOf(label)).toBe(fill));
