import { afterEach, beforeEach, expect, it, vi } from "vitest";

import type { LivingBench } from "../shared";
import type { Benches } from "./benches";
import { Keeper } from "./keeper";

type Slot<T> = (sender: unknown, value: T) => void;

/** A bench in an output of a notebook: what Python was asked, and what happens in the page. */
function notebook(collaborative: boolean) {
  const changed: Slot<unknown>[] = [];
  const saved: Slot<string>[] = [];
  const key = {};
  const keep = vi.fn();
  const runs: unknown[] = [];
  const bench = { element: {}, runs, still: () => Promise.resolve({}) } as unknown as LivingBench;
  const context = {
    model: { collaborative, dirty: false },
    save: vi.fn(),
    saveState: { connect: (slot: Slot<string>) => saved.push(slot) },
  };
  new Keeper({
    changed: { connect: (slot: Slot<unknown>) => changed.push(slot) },
    has: () => true,
    outputOf: () => ({ key }),
    outputsOf: () => [{ keep }],
    contextOf: () => context,
  } as unknown as Benches);
  return {
    keep,
    change: async () => {
      for (const slot of changed) slot(null, bench);
      await vi.advanceTimersByTimeAsync(5000);
    },
    run: () => runs.push({ id: "a", score: "41 dB", p50: "1 ms", error: "" }),
    save: async () => {
      for (const slot of saved) slot(null, "completed");
      await vi.advanceTimersByTimeAsync(0);
    },
  };
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("window", globalThis);
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it("keeps each setting in a notebook of one person", async () => {
  const { keep, change } = notebook(false);
  await change();
  await change();
  expect(keep).toHaveBeenCalledTimes(2);
});

it("keeps settings in a shared notebook when somebody saves, and runs at once", async () => {
  const { keep, change, run, save } = notebook(true);
  await change();
  await change();
  expect(keep).not.toHaveBeenCalled();
  await save();
  await save();
  expect(keep).toHaveBeenCalledTimes(1);
  run();
  await change();
  expect(keep).toHaveBeenCalledTimes(2);
  await change();
  expect(keep).toHaveBeenCalledTimes(2);
});
