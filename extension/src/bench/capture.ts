/** The step in which failures of capture are seen and dealt with. */

import type { FailureSummary } from "../generated/widgets";
import { make, withCode } from "../render/dom";
import { sharedNow } from "../shared";
import { asker } from "./ask";
import { actButton, copyButton } from "./buttons";
import { DIM } from "./dim";
import { type Cleanups, listen, live } from "./live";
import { act, type BenchModel } from "./model";
import { counted } from "./numbers";
import { outcomeView } from "./outcome";

const AT_ONCE = 20; // cards

export function captureStep(model: BenchModel, ends: Cleanups): HTMLElement {
  const step = make("div", { class: "pbb-capture" });
  const editDraft = draftEditor(model, step, ends);
  step.append(
    outcomeView(model, "capture", ends),
    live(model, ["failures", "fixes_known", "running", "selected"], () => failuresView(model, editDraft), ends),
    live(model, ["selected", "leaves", "leaf_wrap", "leaf_label", "failures"], leavesView, ends),
    live(model, ["assumptions"], assumptionsView, ends),
  );
  listen(model, ["selected"], () => showSelected(step), ends);
  return step;
}

/** Brings the card of a module that was selected in the diagram beside it into view; what others select moves nothing. */
function showSelected(step: HTMLElement): void {
  if (step.closest(".pbb-box")?.querySelector(".pbb-picture:is(:hover, :focus-within)"))
    step.querySelector("[aria-current='true']")?.scrollIntoView({ block: "nearest" });
}

type EditDraft = (fqn: string) => void;

/** Asks Python for a draft as code, which goes into a cell below. */
function draftEditor(model: BenchModel, step: HTMLElement, ends: Cleanups): EditDraft {
  const ask = asker(
    model,
    "draft",
    ({ code }) => code && sharedNow().insertBelow?.(code, step.closest<HTMLElement>(".pbb-box") ?? step),
    ends,
  );
  return (fqn) => ask("edit_draft", { fqn });
}

function failuresView(model: BenchModel, editDraft: EditDraft): HTMLElement {
  const failures = model.get("failures");
  const again = actButton(model, "capture", "Capture again", {
    disabled: model.get("running"),
    title: "After a change of the model or its code",
  });
  const open = failures.filter(({ fixed, is_leaf, graphs }) => !fixed && !is_leaf && !graphs);
  const modules = open.reduce((sum, { count }) => sum + Math.max(1, count), 0);
  const words = !failures.length
    ? "✓ Every module can be captured."
    : modules
      ? `✕ ${counted(modules, "module")} cannot be captured.`
      : "✓ What could not be captured is dealt with.";
  const fixable = open.filter(({ can_fix }) => can_fix).length;
  const all = actButton(model, "apply_fixes", `Apply all ${fixable} fixes`, {
    class: "pbb-primary",
    title: "Apply every change that is proven; one Undo takes them back",
  });
  const head = make("div", { class: "pbb-line" }, make("b", { role: "status" }, words));
  head.append(...(fixable > 1 ? [all] : []), again);
  const looking = open.length > 0 && !model.get("fixes_known");
  const soon = looking ? [make("p", { class: "pbb-dim", role: "status" }, "Looking for changes that work …")] : [];
  const cards = failures.slice(0, AT_ONCE).map((failure) => card(model, failure, editDraft));
  const rest = failures.length - cards.length;
  const more = rest > 0 ? [make("p", DIM, `and ${rest} more, listed in the report`)] : [];
  return make("div", { class: "pbb-stack" }, head, ...soon, ...cards, ...more);
}

function card(model: BenchModel, failure: FailureSummary, editDraft: EditDraft): HTMLElement {
  const { fqn, type, title, remedy, fixed, is_leaf, graphs, count, fqns } = failure;
  const selected = model.get("selected");
  const name = fqn || "the model itself";
  const state = fixed ? "fixed" : is_leaf ? "leaf" : graphs ? "several" : "failed";
  const sign = { fixed: "✓ fixed", leaf: "▣ kept in PyTorch", several: `✓ ${graphs} graphs`, failed: "✕ failed" }[
    state
  ];
  const head = make(
    "div",
    { class: "pbb-line" },
    make("span", { class: "pbb-sign-text" }, sign),
    make("strong", {}, title),
  );
  const select = (): void => act(model, "select", { fqn });
  const said = state === "several" ? `${graphs} graphs` : state;
  const alike = state === "several" ? "alike" : "fail alike";
  const where = make(
    "div",
    {},
    make("button", { class: "pbb-link", title: "Show in the diagram", click: select }, name),
    make("span", DIM, ` ${type}${count > 1 ? ` · ${count} modules ${alike}` : ""}`),
  );
  const parts = [head, where, ...lineOf(failure)];
  if (remedy && state === "failed") parts.push(make("p", { class: "pbb-remedy" }, ...withCode(remedy)));
  if (state === "several") parts.push(make("p", { class: "pbb-remedy" }, severalWords(graphs)));
  parts.push(...fixOf(failure), actions(model, failure, name, editDraft));
  return make(
    "article",
    {
      class: "pbb-card",
      "data-state": state,
      "aria-label": `${name}: ${title}, ${said}`,
      "aria-current": selected !== "" && (fqn === selected || fqns.includes(selected)),
    },
    ...parts,
  );
}

function severalWords(graphs: number): string {
  return (
    "The sizes of your samples lead different ways here. " +
    `A compile makes ${graphs} graphs of the model, and each call runs the one that its sizes fit.`
  );
}

function lineOf({ place, code }: FailureSummary): HTMLElement[] {
  return place ? [make("code", { class: "pbb-place" }, make("span", DIM, place), `   ${code}`)] : [];
}

/** The change that would make it work, and how it was checked. */
function fixOf({ fqn, diff, proof, can_fix, assumption, fixed }: FailureSummary): HTMLElement[] {
  if (!diff) return [];
  const draft = assumption ? "A change that works where its assumption is right" : "A draft of a change";
  const title = fixed ? "The change" : can_fix ? "A change that works" : draft;
  const lines = diff.split("\n").map((line) => {
    const kind = /^[+](?![+]{2} )/.test(line) ? "pbb-added" : /^-(?!-- )/.test(line) ? "pbb-removed" : "";
    return make("span", { class: kind }, `${line}\n`);
  });
  const details = make(
    "details",
    { "data-name": `fix ${fqn}`, open: !fixed },
    make("summary", {}, title),
    make("pre", { class: "pbb-diff" }, ...lines),
    make("p", DIM, ...withCode(proof)),
  );
  return [details];
}

function actions(model: BenchModel, failure: FailureSummary, name: string, editDraft: EditDraft): HTMLElement {
  const { fqn, can_fix, assumption, fixed, is_leaf, file, line, code, place, report, count } = failure;
  const row = make("div", { class: "pbb-actions" });
  const add = (label: string, spoken: string, click: () => void, more: { class?: string; title?: string } = {}): void =>
    row.append(make("button", { ...more, "aria-label": spoken, click }, label));
  if (can_fix && !fixed)
    add("Apply fix", `Apply fix to ${name}`, () => act(model, "apply_fix", { fqn }), { class: "pbb-primary" });
  if (assumption && !fixed) {
    const title = `It takes for granted that ${assumption}`;
    add("Apply anyway", `Apply the fix of ${name} anyway`, () => act(model, "apply_fix_anyway", { fqn }), { title });
  }
  if (fixed) add("Take back", `Take back the fix of ${name}`, () => act(model, "remove_fix", { fqn }));
  if (fqn && !fixed) {
    const label = is_leaf ? "Capture it again" : count > 1 ? "Keep them in PyTorch" : "Keep it in PyTorch";
    const title = "It runs in PyTorch between the compiled parts; not every target can do that";
    add(label, `${label}: ${name}`, () => act(model, "set_leaf", { fqn, leaf: !is_leaf }), { title });
  }
  if (failure.has_draft && sharedNow().insertBelow) {
    const label = "Edit in a cell below";
    const title = "A cell with the changed classes, which you can change further and run";
    add(label, `${label}: ${name}`, () => editDraft(fqn), { title });
  }
  const open = sharedNow().openSource;
  if (open && file) {
    const click = (): void => open(file, line, code, row);
    row.append(make("button", { title: `Open ${place}`, click }, "Open line"));
  }
  if (report) row.append(copyButton(() => report, "Copy report", `Copy report of ${name}`));
  return row;
}

function leavesView(model: BenchModel): HTMLElement {
  const leaves = model.get("leaves");
  const failed = new Set(model.get("failures").map(({ fqn }) => fqn));
  const selected = model.get("selected");
  const shown = leaves.filter((fqn) => !failed.has(fqn));
  if (selected && !shown.includes(selected) && !failed.has(selected)) shown.unshift(selected);
  const change = (): void => act(model, "set_leaf_wrap", { leaf_wrap: all.checked });
  const all = make("input", { type: "checkbox", change });
  all.checked = model.get("leaf_wrap");
  const title = "Lines that cannot be captured run in PyTorch between the compiled parts; not every target can do that";
  const switches = shown.map((fqn) => leafSwitch(model, fqn, leaves.includes(fqn)));
  const hint = selected ? [] : [make("p", DIM, "Select a module in the diagram to keep it in PyTorch.")];
  return make(
    "section",
    { class: "pbb-stack", "aria-label": "Kept in PyTorch" },
    make("h4", {}, "Kept in PyTorch"),
    make("label", { class: "pbb-switch", title }, all, ` ${model.get("leaf_label")}`),
    ...switches,
    ...hint,
  );
}

function leafSwitch(model: BenchModel, fqn: string, on: boolean): HTMLElement {
  const change = (): void => act(model, "set_leaf", { fqn, leaf: box.checked });
  const box = make("input", { type: "checkbox", "aria-label": `${fqn} is kept in PyTorch`, change });
  box.checked = on;
  return make("label", { class: "pbb-switch" }, box, " ", make("code", {}, fqn), on ? " stays in PyTorch" : "");
}

function assumptionsView(model: BenchModel): HTMLElement {
  const assumptions = model.get("assumptions");
  const items = assumptions.map((text) => make("li", {}, ...withCode(text)));
  return make(
    "section",
    { class: "pbb-stack", "aria-label": "What the graph takes for granted" },
    make("h4", {}, "What the graph takes for granted"),
    items.length ? make("ul", { class: "pbb-list" }, ...items) : make("p", DIM, "Nothing beyond the samples' types."),
  );
}
