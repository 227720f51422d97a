/** The traits that Python sets and the actions that it takes; both are declared in Python. */

import type { BenchActions, BenchSummary, RunStatus, RunSummary } from "../generated/widgets";
import { lose } from "../lost";

export type BenchTraits = BenchSummary & RunStatus;

/** A run with how its choices differ from the current ones, and whether its results are shown. */
export type RunNow = RunSummary & { stale: readonly string[]; shown: boolean };

/** The traits that say all of runs; staleness is apart, because each click changes it. */
export const RUN_TRAITS = ["runs", "shown_run", "staleness", "stale_of"] as const;

/** The history as it stands now. */
export function runsNow(model: BenchModel): RunNow[] {
  const [staleness, staleOf, shown] = [model.get("staleness"), model.get("stale_of"), model.get("shown_run")];
  return model
    .get("runs")
    .map((run, at) => ({ ...run, stale: staleness[staleOf[at] ?? -1]?.texts ?? [], shown: run.id === shown }));
}

export interface BenchModel {
  get<K extends keyof BenchTraits>(name: K): BenchTraits[K];
  on(event: string, callback: (...given: never[]) => void): void;
  off(event: string, callback: (...given: never[]) => void): void;
  send(content: Record<string, unknown>): void;
}

/** Asks Python to do something. */
export function act<K extends keyof BenchActions>(model: BenchModel, action: K, payload: BenchActions[K]): void {
  try {
    model.send({ action, ...payload });
  } catch {
    lose(model);
  }
}
