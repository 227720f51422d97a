/** A message over the picture, with buttons for what can be done about it. */

import { make } from "./dom";

export type Choice = [name: string, act: () => void];

export class Notice {
  readonly element = make("div", { class: "pbd-message", role: "alert" });

  constructor() {
    this.element.hidden = true;
  }

  show(text: string, choices: readonly Choice[]): void {
    const buttons = choices.map(([name, act]) => {
      const click = (): void => {
        this.hide();
        act();
      };
      return make("button", { click }, name);
    });
    this.element.replaceChildren(make("p", {}, text), make("div", { class: "pbd-actions" }, ...buttons));
    this.element.hidden = false;
  }

  hide(): void {
    this.element.hidden = true;
    this.element.replaceChildren();
  }
}
