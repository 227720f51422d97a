/** The small parts of the bench: header, axes, target, compile, code. Each is built again when its traits change. */

import type { AxisSummary, BenchActions, Progress } from "../generated/widgets";
import { copyText, make } from "../render/dom";
import { act, type BenchModel } from "./model";

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
  const rows = [...byPath].map(([path, axes]) =>
    make("div", { class: "pbb-axes-row" }, make("code", {}, path), ...axes.map((axis) => axisButton(model, axis))),
  );
  return make("div", {}, ...rows);
}

function axisButton(model: BenchModel, { path, dim, dynamic, sizes, symbol }: AxisSummary): HTMLElement {
  const seen = sizes.length ? sizes.join(", ") : "?";
  const compiled = dynamic ? "Any size" : "Only this size";
  const attributes = {
    type: "button",
    class: "pbb-axis",
    "aria-pressed": String(dynamic),
    "aria-label": `${path} dim ${dim} dynamic`,
    title: `dim ${dim}: sizes in the samples ${seen}. ${compiled} after compiling.`,
    click: () => act(model, "set_axis", { path, dim, dynamic: !dynamic }),
  };
  return make(
    "button",
    attributes,
    make("b", {}, dynamic ? symbol || `d${dim}` : seen),
    make("small", {}, dynamic ? `dynamic · seen ${seen}` : "static"),
  );
}

export function targetView(model: BenchModel): HTMLElement {
  const change = (): void => act(model, "set_target", { target: select.value });
  const select = make("select", { "aria-label": "target", change });
  for (const target of model.get("targets")) select.append(make("option", { value: target }, target));
  select.value = model.get("target");
  const parts = [make("label", {}, "Target ", select)];
  if (model.get("failures") > 0 || model.get("leaf_wrap")) parts.push(leafBox(model));
  return make("div", { class: "pbb-target" }, ...parts);
}

function leafBox(model: BenchModel): HTMLLabelElement {
  const change = (): void => act(model, "set_leaf_wrap", { leaf_wrap: box.checked });
  const box = make("input", { type: "checkbox", change });
  box.checked = model.get("leaf_wrap");
  const title =
    "Modules that cannot be captured become leaf modules, which stay in Python. Not every target runs them.";
  return make("label", { title }, box, " failing modules become leaf modules");
}

export function runView(model: BenchModel): HTMLElement {
  const running = model.get("running");
  const progress = model.get("progress");
  const { kind, text } = model.get("message");
  const bar = make("progress", { max: "1", "aria-label": "progress" });
  if (running) bar.value = progress.total > 0 ? Math.min(1, progress.done / progress.total) : 0;
  bar.hidden = !running;
  const run = (action: keyof Pick<BenchActions, "compile" | "cancel">, label: string, more = {}): HTMLElement =>
    make("button", { type: "button", ...more, click: () => act(model, action, {}) }, label);
  const parts = [run("compile", "Compile", { class: "pbb-primary", disabled: running })];
  if (running) parts.push(run("cancel", "Cancel"));
  parts.push(bar, make("span", { class: "pbb-stage", role: "status" }, running ? stageText(progress) : ""));
  if (text && !running) {
    parts.push(make("pre", { class: `pbb-message pbb-${kind}`, role: kind === "error" ? "alert" : "status" }, text));
  }
  return make("div", { class: "pbb-run" }, ...parts);
}

function stageText({ stage, done, total, message }: Progress): string {
  const counted = total > 1 ? `${stage} ${done}/${total}` : stage;
  return message ? `${counted} · ${message}` : counted;
}

export function codeView(model: BenchModel): HTMLElement {
  const click = async (): Promise<void> => {
    await copyText(model.get("code"));
    copy.textContent = "Copied";
  };
  const copy = make("button", { type: "button", click }, "Copy");
  return make(
    "details",
    { class: "pbb-code" },
    make("summary", {}, "The same in Python"),
    copy,
    make("pre", {}, make("code", {}, model.get("code"))),
  );
}
