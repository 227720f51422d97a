/** The step in which targets are chosen and compiled for. */

import type { TargetSummary } from "../generated/widgets";
import { make } from "../render/dom";
import { actButton } from "./buttons";
import { settingField } from "./editor";
import { type Cleanups, live } from "./live";
import { messageView } from "./message";
import { act, type BenchModel } from "./model";
import { logView, ProgressView } from "./progress";

export function runStep(model: BenchModel, ends: Cleanups): HTMLElement {
  return make(
    "div",
    { class: "pbb-run" },
    live(model, ["targets", "leaf_wrap", "leaf_label"], targetsView, ends),
    live(model, ["running", "targets", "queue"], startView, ends),
    new ProgressView(model, ends).element,
    logView(model, ends), // what comes below it when a run ends moves nothing in this step
    live(model, ["stale", "running"], staleView, ends),
    live(model, ["message"], messageView, ends),
  );
}

function targetsView(model: BenchModel): HTMLElement {
  const targets = model.get("targets");
  const cards = targets.map((target) => targetCard(model, target));
  const change = (): void => act(model, "set_leaf_wrap", { leaf_wrap: box.checked });
  const box = make("input", { type: "checkbox", change });
  box.checked = model.get("leaf_wrap");
  const title =
    "Modules that cannot be captured become leaf modules, which stay in Python. Not every target runs them.";
  return make(
    "div",
    { class: "pbb-stack" },
    make("div", { class: "pbb-targets", role: "group", "aria-label": "Targets" }, ...cards),
    make("label", { class: "pbb-switch", title }, box, ` ${model.get("leaf_label")}`),
  );
}

function targetCard(model: BenchModel, target: TargetSummary): HTMLElement {
  const { name, chosen, unavailable, problem, options } = target;
  const change = (): void => act(model, "set_target", { target: name, chosen: box.checked });
  const box = make("input", { type: "checkbox", "aria-label": name, change, disabled: unavailable !== "" && !chosen });
  box.checked = chosen;
  const parts: HTMLElement[] = [make("label", { class: "pbb-target-name" }, box, ` ${name}`)];
  if (unavailable) parts.push(make("p", { class: "pbb-dim" }, unavailable));
  if (problem) parts.push(make("p", { class: "pbb-problem" }, `⚠ ${problem}`));
  if (chosen && options.length) {
    const fields = options.map((option) =>
      settingField(option, option.value, (value) =>
        act(model, "set_target_option", { target: name, name: option.name, value }),
      ),
    );
    const summary = make("summary", {}, "Options");
    parts.push(
      make("details", { "data-name": `options ${name}` }, summary, make("div", { class: "pbb-fields" }, ...fields)),
    );
  }
  return make("div", { class: "pbb-target", "data-chosen": String(chosen) }, ...parts);
}

function startView(model: BenchModel): HTMLElement {
  const chosen = model.get("targets").filter((target) => target.chosen);
  const running = model.get("running");
  const label = chosen.length > 1 ? `Compile for ${chosen.length} targets` : "Compile";
  const button = actButton(model, "compile", label, {
    class: "pbb-primary",
    disabled: running || !chosen.length,
    title: chosen.length ? `Compile for ${chosen.map(({ name }) => name).join(", ")}` : "Choose a target first",
  });
  const queue = model.get("queue");
  const list = queue.length ? `Then: ${queue.join(", ")}` : "";
  return make("div", { class: "pbb-line" }, button, make("span", { class: "pbb-dim", role: "status" }, list));
}

function staleView(model: BenchModel): HTMLElement {
  const stale = model.get("stale");
  const place = make("div", { class: "pbb-said" });
  if (stale && !model.get("running")) {
    place.append(make("p", { class: "pbb-old", role: "status" }, `The newest results are old: ${stale}.`));
  }
  return place;
}
