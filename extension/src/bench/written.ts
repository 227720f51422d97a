/** What candidates wrote after each prompt, side by side; where one leaves the float model's text is marked. */

import type { WrittenBy, WrittenText } from "../generated/widgets";
import { make } from "../render/dom";
import { DIM } from "./dim";

/** The parts of the page that hold one text. */
interface Cell {
  said: HTMLElement;
  same: HTMLElement;
  other: HTMLElement;
  rest: HTMLElement;
}

/** Text comes in while a candidate writes: only what holds it changes, so that it can be read, marked and copied. */
export class WrittenView {
  readonly element = make("div", { class: "pbb-written" });
  private key = "";
  private cells: Cell[][] = [];

  show(prompts: readonly string[], written: readonly WrittenBy[]): void {
    const key = JSON.stringify([prompts, written.map(({ name, numbers, texts }) => [name, numbers, texts.length])]);
    if (key !== this.key) this.build(prompts, written);
    this.key = key;
    const reference = written[0]?.name ?? "";
    for (const [at, { texts }] of written.entries()) {
      for (const [prompt, text] of texts.entries()) {
        const cell = this.cells[at]?.[prompt];
        if (cell) fill(cell, text, at === 0 ? "" : reference);
      }
    }
  }

  private build(prompts: readonly string[], written: readonly WrittenBy[]): void {
    const closed = new Set([...this.element.querySelectorAll("details:not([open])")].map(nameOf));
    const open = new Set([...this.element.querySelectorAll("details[open]")].map(nameOf));
    this.cells = written.map(() => []);
    const blocks = prompts.map((prompt, at) => {
      const name = prompts.length > 1 ? `Prompt ${at + 1}` : "Prompt";
      const cards = written.flatMap((by, candidate) =>
        at < by.texts.length ? [this.card(by, candidate, at === 0)] : [],
      );
      const quoted = make("span", { class: "pbb-prompt" }, prompt);
      const summary = make("summary", {}, make("b", {}, name), " ", quoted);
      const block = make("details", { "data-name": name }, summary, make("div", { class: "pbb-texts" }, ...cards));
      block.open = open.has(name) || (at === 0 && !closed.has(name));
      return block;
    });
    this.element.replaceChildren(...(written.length ? blocks : []));
    this.element.hidden = written.length === 0;
  }

  /** The first prompt's cards say what all of it cost, too. */
  private card(by: WrittenBy, candidate: number, isFirst: boolean): HTMLElement {
    const cell = {
      said: make("small", { class: "pbb-agree" }),
      same: make("span"),
      other: make("mark"),
      rest: make("span"),
    };
    this.cells[candidate]!.push(cell);
    const text = make("p", { class: "pbb-text", tabindex: "0" }, cell.same, cell.other, cell.rest);
    text.setAttribute("aria-label", `What ${by.name} wrote`);
    const head = make("div", { class: "pbb-text-head" }, make("b", { title: by.name }, by.name), cell.said);
    const parts = by.numbers && isFirst ? [make("small", DIM, by.numbers)] : [];
    return make("div", { class: "pbb-text-card", role: "group", "aria-label": by.name }, head, text, ...parts);
  }
}

function nameOf(details: Element): string {
  return details.getAttribute("data-name") ?? "";
}

/** `reference` is the name of what the text is compared with; "" for that itself. */
function fill(cell: Cell, { same, other, rest, agree, tokens }: WrittenText, reference: string): void {
  const differs = reference !== "" && agree < tokens;
  put(cell.same, same);
  put(cell.rest, rest);
  put(cell.other, differs ? visible(other) : "");
  cell.other.hidden = !differs;
  cell.other.title = differs ? `Token ${agree + 1}: the first that ${reference} does not have here` : "";
  const all = tokens === 1 ? "1 token" : `${tokens} tokens`;
  put(cell.said, !reference ? "" : differs ? `≠ from token ${agree + 1} of ${tokens}` : `✓ same ${all}`);
  cell.said.classList.toggle("pbb-differs-text", differs);
}

/** A text that is the same is left alone, with what somebody has marked in it. */
function put(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** What a token shows that has no letters: ends of lines, and tokens without text. */
function visible(text: string): string {
  return text === "" ? "∅" : text.replaceAll("\n", "↵\n");
}
