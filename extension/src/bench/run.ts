/** The step in which targets are chosen and compiled for. */

import type { QueuedSummary, TargetSummary } from "../generated/widgets";
import { make } from "../render/dom";
import { actButton } from "./buttons";
import { DIM } from "./dim";
import { settingField } from "./editor";
import { type Cleanups, listen, live } from "./live";
import { act, type BenchModel } from "./model";
import { counted } from "./numbers";
import { outcomeView } from "./outcome";
import { logView } from "./progress";
import { SearchView } from "./search";
import { WrittenView } from "./written";

export function runStep(model: BenchModel, ends: Cleanups): HTMLElement {
  return make(
    "div",
    { class: "pbb-run" },
    live(model, ["targets", "leaf_wrap", "leaf_label"], targetsView, ends),
    live(model, ["workload"], workloadView, ends),
    live(model, ["running", "targets", "is_queued", "then", "recovery"], startView, ends),
    outcomeView(model, "compile", ends),
    live(model, ["stale", "running"], staleView, ends),
    live(model, ["queue"], queueView, ends),
    writingView(model, ends),
    logView(model, ends),
    new SearchView(model, ends).element,
  );
}

/** What is generated to compare candidates. */
function workloadView(model: BenchModel): HTMLElement {
  const workload = model.get("workload");
  const place = make("div", { class: "pbb-said" });
  if (workload) place.append(make("p", DIM, `Compared by what they generate: ${workload}.`));
  return place;
}

/** The text of candidates as it comes. */
function writingView(model: BenchModel, ends: Cleanups): HTMLElement {
  const view = new WrittenView();
  const show = (): void => view.show(model.get("prompts"), model.get("writing"));
  listen(model, ["prompts", "writing"], show, ends);
  show();
  return view.element;
}

function targetsView(model: BenchModel): HTMLElement {
  const targets = model.get("targets");
  const cards = targets.map((target) => targetCard(model, target));
  const change = (): void => act(model, "set_leaf_wrap", { leaf_wrap: box.checked });
  const box = make("input", { type: "checkbox", change });
  box.checked = model.get("leaf_wrap");
  const title = "Lines that cannot be captured run in PyTorch between the compiled parts; not every target can do that";
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
  if (unavailable) parts.push(make("p", DIM, unavailable));
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
  const isQueued = model.get("is_queued");
  const what = running ? "Add to the queue" : "Compile";
  const label = chosen.length > 1 ? `${what} for ${chosen.length} targets` : what;
  const names = chosen.map(({ name }) => name).join(", ");
  const title = !names
    ? "Choose a target first"
    : isQueued
      ? "A run with these settings goes on or waits"
      : running
        ? `Compile for ${names} with the settings of now, after what runs and waits`
        : `Compile for ${names}`;
  const button = actButton(model, "compile", label, {
    class: "pbb-primary",
    disabled: isQueued || !chosen.length,
    title,
  });
  const then = model.get("then");
  const { on, steps } = model.get("recovery");
  const training = on ? `Trains back for ${counted(steps, "step")} first.` : "";
  const list = [training, then.length ? `Then: ${then.join(", ")}` : ""].filter(Boolean).join(" ");
  return make("div", { class: "pbb-line" }, button, make("span", { class: "pbb-dim", role: "status" }, list));
}

/** The runs that wait, each with a button that removes it. */
function queueView(model: BenchModel): HTMLElement {
  const queue = model.get("queue");
  const place = make("section", { class: "pbb-queue", "aria-label": "Runs that wait" });
  if (!queue.length) return place;
  const title = "Stop the run, and forget what waits";
  const head = make(
    "div",
    { class: "pbb-line" },
    make("b", { role: "status" }, `${counted(queue.length, "run")} waiting`),
    actButton(model, "cancel_all", "Cancel all", { title }),
  );
  place.append(head, make("ol", {}, ...queue.map((run) => queued(model, run))));
  return place;
}

function queued(model: BenchModel, { id, name, target, settings }: QueuedSummary): HTMLElement {
  const click = (): void => act(model, "remove_queued", { id });
  const remove = { "aria-label": `Remove ${name} for ${target}`, click };
  const words = make("div", { class: "pbb-queued" }, make("b", {}, `${name}, ${target}`), make("small", {}, settings));
  return make("li", {}, make("div", { class: "pbb-line" }, words, make("button", remove, "Remove")));
}

function staleView(model: BenchModel): HTMLElement {
  const stale = model.get("stale");
  const place = make("div", { class: "pbb-said" });
  if (stale && !model.get("running")) {
    place.append(make("p", { class: "pbb-old", role: "status" }, `The newest results are old: ${stale}.`));
  }
  return place;
}
