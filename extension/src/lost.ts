/** Says that the kernel of a widget is gone, and what can be done without it. */

import { make } from "./render/dom";

const BOX = ".jupyter-widgets.widget-container";
const DISCONNECTED = ".jupyter-widgets-disconnected"; // boxes whose kernel was restarted or ended

/** The event that tells of a message that could not be sent, because the kernel is gone; its detail is the model. */
const UNSENT = "prepbench:unsent";

/** The part of a widget's model that tells of its kernel. */
export interface KernelModel {
  on(event: string, callback: (...given: never[]) => void): void;
  off(event: string, callback: (...given: never[]) => void): void;
}

/** Tells the views of a model that its kernel is gone. */
export function lose(model: object): void {
  dispatchEvent(new CustomEvent(UNSENT, { detail: model }));
}

/** A line that is empty until the kernel is gone; `told` hears of it, too. */
export function lostNote(
  model: KernelModel,
  text: string,
  className: string,
  ends: (() => void)[],
  told: (isLost: boolean) => void = () => {},
): HTMLElement {
  const note = make("p", { class: className, role: "status" });
  const tell = (isLost: boolean): void => {
    note.textContent = isLost ? text : "";
    told(isLost);
  };
  // the event does not say what it is about; boxes around show it, and without any it is the end of the kernel
  const look = (): void =>
    queueMicrotask(() => tell(note.closest(DISCONNECTED) !== null || note.closest(BOX) === null));
  const unsent = (event: Event): void => {
    if ((event as CustomEvent<unknown>).detail === model) tell(true);
  };
  model.on("comm_live_update", look);
  addEventListener(UNSENT, unsent);
  ends.push(() => {
    model.off("comm_live_update", look);
    removeEventListener(UNSENT, unsent);
  });
  return note;
}
