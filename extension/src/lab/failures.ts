import type { TreeRow } from "../render";
import { withCode } from "../render/dom";
import type { Offer } from "../render/offers";
import { isFailure } from "./rows";
import { element } from "./widgets";

const AT_ONCE = 100;

/** What a list of failures can do. */
export interface FailureActions {
  reveal(fqn: string): void;
  openSource(file: string, line: number, code: string): void;
  offers(fqn: string): readonly Offer[];
}

/** The failures of a document with reason, remedy and place; null if there are none. */
export function failureList(rows: readonly TreeRow[], actions: FailureActions): HTMLElement | null {
  const failures = rows.filter(isFailure);
  if (failures.length === 0) return null;
  const whole = element("details", "pbl-failures");
  whole.open = true;
  const failed =
    failures.length === 1 ? "1 module cannot be captured" : `${failures.length} modules cannot be captured`;
  whole.append(element("summary", "", failed));
  const list = element("ul");
  whole.append(list);
  append(list, failures, actions);
  return whole;
}

function append(list: HTMLUListElement, failures: readonly TreeRow[], actions: FailureActions): void {
  list.append(...failures.slice(0, AT_ONCE).map((row) => entry(row, actions)));
  const rest = failures.slice(AT_ONCE);
  if (rest.length === 0) return;
  const item = element("li");
  const more = button("pbl-link", `Show ${Math.min(rest.length, AT_ONCE)} of ${rest.length} more`, () => {
    item.remove();
    append(list, rest, actions);
  });
  item.append(more);
  list.append(item);
}

function entry(row: TreeRow, actions: FailureActions): HTMLLIElement {
  const item = element("li", "pbl-failure");
  const name = button("pbl-link pbl-failure-name", row.fqn || row.type, () => actions.reveal(row.fqn));
  name.title = "Show in the diagram";
  const head = element("div");
  head.append(element("span", "pbl-glyph", row.status === "leaf" ? "▣" : "✕"), name);
  if (row.fqn) head.append(element("span", "pbl-type", row.type));
  item.append(head);
  if (row.reason) item.append(element("div", "pbl-reason", row.reason));
  if (row.remedy) {
    const remedy = element("div", "pbl-remedy");
    remedy.append(...withCode(row.remedy));
    item.append(remedy);
  }
  if (row.source) item.append(place(row.source, actions));
  for (const { label, title, run } of actions.offers(row.fqn)) {
    const apply = button("pbl-link", label, run);
    apply.title = title;
    apply.setAttribute("aria-label", `${label} to ${row.fqn || "the model itself"}`);
    item.append(apply);
  }
  return item;
}

function place(source: NonNullable<TreeRow["source"]>, actions: FailureActions): HTMLElement {
  const { file, line, code } = source;
  const whole = element("div", "pbl-place");
  const short = file.split(/[\\/]/).at(-1) || file;
  const link = button("pbl-link pbl-source", `Open line · ${short}:${line}`, () =>
    actions.openSource(file, line, code),
  );
  link.title = `Open ${file}:${line}`;
  whole.append(link);
  if (code) whole.append(element("code", "", code));
  return whole;
}

function button(className: string, text: string, action: () => void): HTMLButtonElement {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}
