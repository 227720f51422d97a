/** The rules that decide for layers, in their order. */

import { make } from "../render/dom";
import { DIM } from "./dim";
import { act, type BenchModel } from "./model";
import { counted } from "./numbers";

export function rulesView(model: BenchModel): HTMLElement {
  const rules = model.get("rules");
  const title = make("h4", {}, "Rules");
  const base = make("li", {}, make("code", {}, "every layer"), ` ${model.get("base")}`);
  base.className = "pbb-rule-chip pbb-dim";
  const chips = rules.map(({ pattern, label, layers, prunes }) => {
    const click = (): void => act(model, prunes ? "clear_pruning" : "clear_rules", { pattern: [pattern] });
    const name = `Remove the rule ${pattern}${prunes ? " of pruning" : ""}`;
    const remove = make("button", { class: "pbb-icon", title: name, "aria-label": name, click }, "✕");
    const count = make("span", DIM, counted(layers, "layer"));
    const code = make("code", { title: pattern }, pattern);
    return make("li", { class: "pbb-rule-chip" }, code, make("b", {}, label), count, remove);
  });
  return make("section", { class: "pbb-rules", "aria-label": "Rules" }, title, make("ul", {}, base, ...chips));
}
