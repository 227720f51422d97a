/** Questions to Python whose answers belong to the view that asked, though all views of a bench hear them. */

import type { BenchActions, Card } from "../generated/widgets";
import type { Cleanups } from "./live";
import { act, type BenchModel } from "./model";

/** What Python may say in an answer. */
export interface Answer {
  readonly action?: string;
  readonly name?: string;
  readonly code?: string;
  readonly card?: Card;
  readonly part?: number;
  readonly parts?: number;
}

type Ask = <K extends keyof BenchActions>(action: K, payload: BenchActions[K]) => void;

/** Makes a function that asks, and hands answers of one kind to `answered` where this view waits for one. */
export function asker(
  model: BenchModel,
  kind: string,
  answered: (answer: Answer, buffers: readonly DataView[]) => void,
  ends: Cleanups,
): Ask {
  let waits = 0;
  const heard = (answer: Answer, buffers: readonly DataView[]): void => {
    if (answer.action !== kind || waits === 0) return;
    if ((answer.part ?? 1) >= (answer.parts ?? 1)) waits -= 1;
    answered(answer, buffers);
  };
  model.on("msg:custom", heard as never);
  ends.push(() => model.off("msg:custom", heard as never));
  return (action, payload) => {
    waits += 1;
    act(model, action, payload);
  };
}
