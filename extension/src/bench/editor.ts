/** What the selected layers are to be: the selection and the buttons that act on it, in one line. */

import { float } from "../generated/formats.json";
import type { Decision, ExpectedSize, PrecisionChoice, SettingField } from "../generated/widgets";
import { make } from "../render/dom";
import { DIM } from "./dim";
import { shortNumber } from "./numbers";

export interface EditorEvents {
  precision(name: PrecisionChoice["name"]): void;
  setting(field: string, value: string): void;
  reset(): void;
}

export interface Edited {
  /** Decisions of the selected layers, each kind once. */
  decisions: readonly Decision[];
  /** How many are selected. */
  layers: number;
  precisions: readonly PrecisionChoice[];
  settings: readonly SettingField[];
  expected: ExpectedSize;
}

/** The value that all have; "" if they differ or it is not known. */
function present(decisions: readonly Decision[], field: string): string {
  const values = new Set(
    decisions.map((decision) => String((decision as unknown as Record<string, unknown>)[field] ?? "")),
  );
  return values.size === 1 ? [...values][0]! : "";
}

const WORDS: Record<string, Record<string, string>> = {
  weights: { [float]: "float" },
  activations: { [float]: "float" },
  block: { "0": "per channel" },
  mask: { "1:1": "weights" },
  amount: Object.fromEntries(["10", "25", "50", "75", "90"].map((share) => [share, `${share} %`])),
};

export class Editor {
  readonly element: HTMLElement;
  private readonly body = make("div", { class: "pbb-editor-body" });
  private more = false;

  /** `chip` says what is selected; it is never built again, since somebody may type in it. */
  constructor(
    private readonly events: EditorEvents,
    chip: HTMLElement,
  ) {
    const about = { role: "group", "aria-label": "Settings of the selected layers" };
    this.element = make("div", { class: "pbb-editor", ...about }, chip, this.body);
  }

  focus(): void {
    this.body.querySelector<HTMLElement>("button:not(:disabled)[tabindex='0'], button:not(:disabled)")?.focus();
  }

  show(edited: Edited): void {
    const inside = this.body.contains(document.activeElement);
    const label = inside ? document.activeElement?.getAttribute("aria-label") : null;
    const parts = [this.precisions(edited), ...this.buttons(edited), expectedSize(edited.expected)];
    const line = make("div", { class: "pbb-editor-row" }, ...parts);
    const more = this.more ? [this.fields(edited.settings, edited.decisions)] : [];
    this.body.replaceChildren(line, ...more);
    if (label) this.body.querySelector<HTMLElement>(`[aria-label="${CSS.escape(label)}"]`)?.focus();
  }

  private buttons(edited: Edited): HTMLElement[] {
    const toggle = (): void => {
      this.more = !this.more;
      this.show(edited);
    };
    const attributes = { "aria-expanded": String(this.more), "aria-label": "More settings" };
    const arrow = make("span", { "aria-hidden": "true" }, this.more ? " ▴" : " ▾");
    const more = make("button", { ...attributes, class: "pbb-quiet", click: toggle }, "More settings", arrow);
    const hasRule = edited.decisions.some(
      ({ rule, pruned_by: by }) => rule !== "global" || !["", "global"].includes(by),
    );
    const title = "Remove what was set for these layers: the default applies again";
    const click = (): void => this.events.reset();
    const reset = make("button", { class: "pbb-quiet", title, disabled: !hasRule, click }, "Use default");
    return [more, reset];
  }

  private precisions({ precisions, decisions, layers }: Edited): HTMLElement {
    const shown = new Set(decisions.map(({ label }) => label));
    const group = make("div", { class: "pbb-choice", role: "radiogroup", "aria-label": "Precision" });
    for (const { name, label, explanation, enabled } of precisions) {
      const on = shown.size === 1 && (shown.has(label) || shown.has(name));
      const attributes = { role: "radio", "aria-checked": String(on), "aria-label": name };
      const why = enabled ? explanation : `${explanation}; needs calibration inputs`;
      const click = (): void => {
        group.dataset["pending"] = name;
        for (const each of group.children) each.setAttribute("aria-checked", String(each === button));
        this.events.precision(name);
      };
      const button = make("button", { ...attributes, title: why, disabled: !enabled || !layers, click }, label);
      group.append(button);
    }
    return steppedByArrows(group);
  }

  private fields(settings: readonly SettingField[], decisions: readonly Decision[]): HTMLElement {
    const fields = settings.map((field) => {
      const value = present(decisions, field.name);
      const set = (chosen: string): void => this.events.setting(field.name, chosen);
      const words = WORDS[field.name] ?? {};
      return settingField(field, value, set, (choice) => words[choice] ?? choice);
    });
    return make("div", { class: "pbb-fields" }, ...fields);
  }
}

/** What the whole model will come to with these choices. */
function expectedSize({ megabytes, float_megabytes: all, note }: ExpectedSize): HTMLElement {
  const words = (size: number): string => (all < 1 ? `${shortNumber(1000 * size)} kB` : `${shortNumber(size)} MB`);
  const about = `Expected from weights and settings${note ? `, ${note}` : ""}; the saved file also holds the graph`;
  const help = `${about}. In float: ${words(all)}`;
  const size = make("b", {}, `about ${words(megabytes)}`);
  const beside = make("span", DIM, ` of ${words(all)} in weights`);
  const attributes = { class: "pbb-expected", role: "status", "aria-label": "Expected size", title: help };
  return make("span", attributes, size, beside);
}

type Offered = Pick<SettingField, "title" | "help" | "kind" | "choices"> & Partial<Pick<SettingField, "refused">>;

/** A control for a setting or an option: buttons for few choices, a list for many, a box, or a number. */
export function settingField(
  { title, help, kind, choices, refused = [] }: Offered,
  value: string,
  set: (value: string) => void,
  wordOf: (choice: string) => string = (choice) => choice,
): HTMLElement {
  if (kind === "switch") {
    const box = make("input", { type: "checkbox", "aria-label": title, change: () => set(String(box.checked)) });
    box.checked = value === "true" || value === "True";
    box.indeterminate = value === "";
    return make("label", { class: "pbb-field pbb-switch", title: help }, box, ` ${title}`);
  }
  const name = make("span", { class: "pbb-field-name" }, title);
  if (kind === "number") {
    const number = make("input", { type: "number", value, "aria-label": title, change: () => set(number.value) });
    return make("label", { class: "pbb-field", title: help }, name, number);
  }
  if (choices.length <= 4) {
    const group = make("div", { class: "pbb-choice", role: "radiogroup", "aria-label": title });
    for (const [at, choice] of choices.entries()) {
      const attributes = { role: "radio", "aria-checked": String(choice === value) };
      const word = wordOf(choice) || "auto";
      const refusal = { disabled: Boolean(refused[at]) && choice !== value, title: refused[at] || help };
      const more = { "aria-label": `${title} ${word}`, click: () => set(choice), ...refusal };
      group.append(make("button", { ...attributes, ...more }, word));
    }
    return make("div", { class: "pbb-field", title: help }, name, steppedByArrows(group));
  }
  const select = make("select", { "aria-label": title, change: () => set(select.value) });
  if (!choices.includes(value)) select.append(make("option", { value, disabled: true }, value || "–"));
  for (const [at, choice] of choices.entries()) {
    const word = wordOf(choice) || "auto";
    const refusal = { disabled: Boolean(refused[at]) && choice !== value, title: refused[at] ?? "" };
    select.append(make("option", { value: choice, ...refusal }, refused[at] ? `${word} (${refused[at]})` : word));
  }
  select.value = value;
  return make("label", { class: "pbb-field", title: help }, name, select);
}

/** One stop for Tab; arrows go on to the next choice and take it. */
function steppedByArrows(group: HTMLElement): HTMLElement {
  const all = (): HTMLButtonElement[] => [...group.querySelectorAll<HTMLButtonElement>("button:not(:disabled)")];
  const checked = all().find((button) => button.getAttribute("aria-checked") === "true") ?? all()[0];
  for (const button of group.querySelectorAll("button")) button.tabIndex = button === checked ? 0 : -1;
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const buttons = all();
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next?.focus();
    next?.click();
  });
  return group;
}
