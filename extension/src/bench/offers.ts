/** What a bench offers for its failing modules, to its diagram and to the panel of JupyterLab. */

import { answerOffers, OFFERS_CHANGED, type Offer } from "../render/offers";
import { type Cleanups, listen } from "./live";
import { act, type BenchModel } from "./model";

/** Buttons for a failing module; none where nothing is proven, or it is applied. */
export function offersOf(model: BenchModel, fqn: string): Offer[] {
  const card = model.get("failures").find((failure) => failure.fqns.includes(fqn));
  if (!card?.can_fix || card.fixed) return [];
  return [{ label: "Apply fix", title: card.proof, run: () => act(model, "apply_fix", { fqn: card.fqn }) }];
}

/** Answers the diagram in the box of a bench, now and when more is known. */
export function offerFixes(model: BenchModel, box: HTMLElement, ends: Cleanups): void {
  ends.push(answerOffers(box, (fqn) => offersOf(model, fqn)));
  const tell = (): void => {
    for (const pane of box.querySelectorAll(".pbd-pane")) pane.dispatchEvent(new Event(OFFERS_CHANGED));
  };
  listen(model, ["failures"], tell, ends);
}
