/** The small parts of the bench: header, axes, target, compile, code. Each is built again when its traits change. */

import type { AxisSummary, BenchActions, Card, Progress, Trouble } from "../generated/widgets";
import { copyIcon, copyText, make } from "../render/dom";
import { sharedNow } from "../shared";
import { act, type BenchModel } from "./model";

const TROUBLES = 5; // that an error's card shows

export function headerView(model: BenchModel): HTMLElement {
  const step = (action: "undo" | "redo", label: string, sign: string, enabled: boolean): HTMLElement => {
    const attributes = { type: "button", "aria-label": label, title: label, disabled: !enabled };
    return make("button", { ...attributes, click: () => act(model, action, {}) }, sign);
  };
  return make(
    "header",
    {},
    make("strong", {}, model.get("title")),
    make("span", { class: "pbb-dim" }, model.get("subtitle")),
    make("span", { class: "pbb-grow" }),
    step("undo", "Undo", "↶", model.get("can_undo")),
    step("redo", "Redo", "↷", model.get("can_redo")),
  );
}

export function axesView(model: BenchModel): HTMLElement {
  const byPath = new Map<string, AxisSummary[]>();
  for (const axis of model.get("axes")) byPath.set(axis.path, [...(byPath.get(axis.path) ?? []), axis]);
  if (!byPath.size) return make("p", { class: "pbb-dim" }, "The samples hold no tensors.");
  const rows = [...byPath.values()].map((axes) =>
    make(
      "div",
      { class: "pbb-axes-row" },
      make("code", {}, pathText(axes[0]!)),
      ...axes.map((axis) => axisButton(model, axis)),
    ),
  );
  const problems = model.get("axes").filter((axis) => axis.problem);
  const notes = problems.map((axis) => make("p", { class: "pbb-problem", role: "alert" }, `⚠ ${axis.problem}`));
  return make("div", {}, ...rows, ...notes);
}

function pathText({ path, places }: AxisSummary): string {
  return places > 1 ? `${path} × ${places}` : path;
}

function axisButton(model: BenchModel, { path, dim, dynamic, sizes, symbol, problem }: AxisSummary): HTMLElement {
  const seen = sizes.length ? sizes.join(", ") : "?";
  const compiled = dynamic ? "Any size" : "Only this size";
  const attributes = {
    type: "button",
    class: problem ? "pbb-axis pbb-wrong" : "pbb-axis",
    "aria-pressed": String(dynamic),
    "aria-label": `${path} dim ${dim} dynamic`,
    title: problem || `dim ${dim}: sizes in the samples ${seen}. ${compiled} after compiling.`,
    click: () => act(model, "set_axis", { path, dim, dynamic: !dynamic }),
  };
  return make(
    "button",
    attributes,
    make("b", {}, dynamic ? symbol || `d${dim}` : seen),
    make("small", {}, dynamic ? `dynamic · seen ${seen}` : problem ? "⚠ static, but sizes differ" : "static"),
  );
}

export function targetView(model: BenchModel): HTMLElement {
  const change = (): void => act(model, "set_target", { target: select.value });
  const select = make("select", { "aria-label": "target", change });
  for (const target of model.get("targets")) select.append(make("option", { value: target }, target));
  select.value = model.get("target");
  return make("div", { class: "pbb-target" }, make("label", {}, "Target ", select), leafBox(model));
}

function leafBox(model: BenchModel): HTMLLabelElement {
  const change = (): void => act(model, "set_leaf_wrap", { leaf_wrap: box.checked });
  const box = make("input", { type: "checkbox", change });
  box.checked = model.get("leaf_wrap");
  const title =
    "Modules that cannot be captured become leaf modules, which stay in Python. Not every target runs them.";
  return make("label", { title }, box, ` ${model.get("leaf_label")}`);
}

export function runView(model: BenchModel): HTMLElement {
  const running = model.get("running");
  const progress = model.get("progress");
  const card = model.get("message");
  const bar = make("progress", { max: "1", "aria-label": "progress" });
  if (running) bar.value = progress.total > 0 ? Math.min(1, progress.done / progress.total) : 0;
  bar.hidden = !running;
  const parts = [runButton(model, "compile", "Compile", { class: "pbb-primary", disabled: running })];
  if (running) parts.push(runButton(model, "cancel", "Cancel"));
  parts.push(bar, make("span", { class: "pbb-stage", role: "status" }, running ? stageText(progress) : ""));
  if (model.get("stale") && !running) {
    parts.push(make("p", { class: "pbb-old", role: "status" }, `The results below are old: ${model.get("stale")}.`));
  }
  if (card.text && !running) parts.push(card.kind === "error" ? errorCard(model, card) : said(card));
  return make("div", { class: "pbb-run" }, ...parts);
}

type RunAction = keyof Pick<BenchActions, "compile" | "cancel" | "compile_with_leaves">;

function runButton(model: BenchModel, action: RunAction, label: string, more = {}): HTMLElement {
  return make("button", { type: "button", ...more, click: () => act(model, action, {}) }, label);
}

function said({ kind, text }: Card): HTMLElement {
  return make("p", { class: `pbb-message pbb-${kind}`, role: "status" }, text);
}

/** An error: what fails and where, what can be done about it, and all that was said, folded. */
function errorCard(model: BenchModel, { text, troubles, details, can_be_leaf }: Card): HTMLElement {
  const places = troubles
    .slice(0, TROUBLES)
    .map((trouble) =>
      make(
        "li",
        {},
        make("div", {}, make("b", {}, trouble.fqn || "the model itself"), ` ${trouble.type} · ${trouble.reason}`),
        ...placeOf(trouble),
        ...(trouble.remedy ? [make("div", { class: "pbb-dim" }, trouble.remedy)] : []),
      ),
    );
  const more = troubles.length > TROUBLES ? [make("li", {}, `and ${troubles.length - TROUBLES} more`)] : [];
  const buttons = make("div", { class: "pbb-actions" });
  if (can_be_leaf) {
    const label = troubles.length === 1 ? "Make it a leaf and compile" : "Make them leaf modules and compile";
    buttons.append(
      runButton(model, "compile_with_leaves", troubles.length ? label : "Run these in PyTorch and compile"),
    );
  }
  buttons.append(copyButton(() => [text, details].filter(Boolean).join("\n\n"), "Copy report"));
  const folded = make("details", {}, make("summary", {}, "All that was said"), make("pre", {}, details));
  return make(
    "div",
    { class: "pbb-message pbb-error", role: "alert" },
    make("strong", {}, text),
    ...(places.length ? [make("ul", {}, ...places, ...more)] : []),
    buttons,
    ...(details ? [folded] : []),
  );
}

/** The line of a failure, with a button that opens it where the page can. */
function placeOf({ place, code, file, line }: Trouble): HTMLElement[] {
  if (!place) return [];
  const text = make("code", { class: "pbb-place" }, `${place}   ${code}`);
  const open = sharedNow().openSource;
  if (!open || !file) return [text];
  const click = (): void => open(file, line, code, text);
  const button = make("button", { type: "button", title: `Open ${place}`, click }, "Open line");
  return [text, make("div", { class: "pbb-actions" }, button)];
}

function copyButton(text: () => string, label: string): HTMLElement {
  const click = async (): Promise<void> => {
    await copyText(text());
    button.replaceChildren(copyIcon(), " Copied");
  };
  const button = make("button", { type: "button", click }, copyIcon(), ` ${label}`);
  return button;
}

function stageText({ stage, done, total, message }: Progress): string {
  const counted = total > 1 ? `${stage} ${done}/${total}` : stage;
  return message ? `${counted} · ${message}` : counted;
}

export function codeView(model: BenchModel): HTMLElement {
  return make(
    "details",
    { class: "pbb-code" },
    make("summary", {}, "The same in Python"),
    copyButton(() => model.get("code"), "Copy"),
    make("pre", {}, make("code", {}, model.get("code"))),
  );
}
