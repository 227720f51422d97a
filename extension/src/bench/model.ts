/** The traits that Python sets and the actions that it takes; both are declared in Python. */

import type { BenchActions, BenchSummary, RunStatus } from "../generated/widgets";

/** The controls have all of it, the code's own widget has only the code; `part` tells which it is. */
export type BenchTraits = BenchSummary & RunStatus & { part: "controls" | "code" };

export interface BenchModel {
  get<K extends keyof BenchTraits>(name: K): BenchTraits[K];
  on(event: string, callback: (...given: never[]) => void): void;
  off(event: string, callback: (...given: never[]) => void): void;
  send(content: Record<string, unknown>): void;
}

/** Asks Python to do something. */
export function act<K extends keyof BenchActions>(model: BenchModel, action: K, payload: BenchActions[K]): void {
  model.send({ action, ...payload });
}
