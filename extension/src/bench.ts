/**
 * The controls of the workbench: axes, layers, target, compile, progress, code.
 *
 * Everything shown comes from traits that Python sets, and every click is sent to Python as an action; nothing is decided here.
 * Text from users' models only ever becomes textContent.
 */

interface Axis {
  path: string;
  dim: number;
  sizes: number[];
  dynamic: boolean;
  symbol: string;
}
interface Layer {
  fqn: string;
  type: string;
  parameters: number;
  precision: string;
  note: string;
}
interface Progress {
  stage: string;
  done: number;
  total: number;
  message: string;
}
interface Message {
  kind: "" | "info" | "error";
  text: string;
}

interface State {
  title: string;
  summary: string;
  axes: Axis[];
  layers: Layer[];
  precisions: string[];
  target: string;
  targets: string[];
  leaf_wrap: boolean;
  failures: number;
  quantizable: boolean;
  running: boolean;
  progress: Progress;
  message: Message;
  code: string;
  can_undo: boolean;
  can_redo: boolean;
}

interface Model {
  get<K extends keyof State>(name: K): State[K];
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
  send(content: Record<string, unknown>): void;
}

type Child = Node | string;

function h(
  tag: string,
  attributes: Record<string, string | boolean | ((event: Event) => void)> = {},
  ...children: Child[]
): HTMLElement {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function section(title: string, name: string, ...children: Child[]): HTMLElement {
  return h("section", { class: `pbb-section pbb-${name}`, "aria-label": title }, h("h3", {}, title), ...children);
}

const SHORT: Record<string, string> = { int8: "int8", "int8 weights": "weights", float32: "float" };
const EXPLAIN: Record<string, string> = {
  int8: "weights and activations in 8 bits",
  "int8 weights": "weights in 8 bits, activations in float",
  float32: "left in float",
};

function compact(count: number): string {
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  if (count >= 1e3) return `${(count / 1e3).toFixed(1)} k`;
  return String(count);
}

/** One row of the layer table; kept and updated in place, so that thousands of layers stay quick. */
class LayerRow {
  readonly element: HTMLElement;
  private readonly buttons = new Map<string, HTMLElement>();
  private readonly note: HTMLElement;

  constructor(layer: Layer, precisions: string[], enabled: boolean, choose: (precision: string) => void) {
    const group = h("div", { class: "pbb-choice", role: "radiogroup", "aria-label": `precision of ${layer.fqn}` });
    for (const precision of precisions) {
      const button = h(
        "button",
        {
          type: "button",
          role: "radio",
          title: EXPLAIN[precision] ?? precision,
          "data-precision": precision,
          "aria-label": `${layer.fqn} ${precision}`,
          disabled: !enabled && precision !== "float32",
          click: () => choose(precision),
        },
        SHORT[precision] ?? precision,
      );
      this.buttons.set(precision, button);
      group.append(button);
    }
    group.addEventListener("keydown", (event) => this.arrows(event as KeyboardEvent, precisions, choose));
    this.note = h("td", { class: "pbb-note" });
    this.element = h(
      "tr",
      { "data-fqn": layer.fqn },
      h("th", { scope: "row", title: layer.fqn }, layer.fqn),
      h("td", {}, layer.type),
      h("td", { class: "pbb-number" }, compact(layer.parameters)),
      h("td", {}, group),
      this.note,
    );
    this.update(layer);
  }

  update(layer: Layer): void {
    for (const [precision, button] of this.buttons) {
      const on = precision === layer.precision;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    this.element.dataset.precision = layer.precision;
    this.note.textContent = layer.note;
    this.note.title = layer.note;
  }

  private arrows(event: KeyboardEvent, precisions: string[], choose: (precision: string) => void): void {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const usable = precisions.filter((p) => !this.buttons.get(p)!.hasAttribute("disabled"));
    const next = usable[(usable.indexOf(this.element.dataset.precision!) + step + usable.length) % usable.length]!;
    choose(next);
    this.buttons.get(next)!.focus();
  }
}

/** The layer table with its filter and the buttons that set everything shown. */
class LayerTable {
  readonly element: HTMLElement;
  private rows = new Map<string, LayerRow>();
  private readonly body = h("tbody");
  private readonly filter: HTMLInputElement;
  private readonly counts = h("span", { class: "pbb-counts", "aria-live": "polite" });

  constructor(private readonly model: Model) {
    this.filter = h("input", {
      type: "search",
      placeholder: "Filter layers by name or type",
      "aria-label": "filter layers",
      input: () => this.applyFilter(),
    }) as HTMLInputElement;
    const bulk = h("div", { class: "pbb-choice", role: "group", "aria-label": "set all shown layers" });
    for (const precision of model.get("precisions")) {
      bulk.append(
        h(
          "button",
          {
            type: "button",
            "aria-label": `set shown layers to ${precision}`,
            title: `Set all shown layers: ${EXPLAIN[precision] ?? precision}`,
            disabled: !model.get("quantizable") && precision !== "float32",
            click: () => this.choose(this.shown(), precision),
          },
          SHORT[precision] ?? precision,
        ),
      );
    }
    const head = h(
      "tr",
      {},
      ...["layer", "type", "parameters", "precision", "result"].map((t) => h("th", { scope: "col" }, t)),
    );
    this.element = h(
      "div",
      {},
      h("div", { class: "pbb-toolbar" }, this.filter, h("span", { class: "pbb-dim" }, "all shown:"), bulk, this.counts),
      h(
        "div",
        { class: "pbb-scroll", tabindex: "0", role: "region", "aria-label": "layers" },
        h("table", {}, h("thead", {}, head), this.body),
      ),
    );
    this.update();
  }

  update(): void {
    const layers = this.model.get("layers");
    for (const layer of layers) {
      const row = this.rows.get(layer.fqn);
      if (row) row.update(layer);
      else this.add(layer);
    }
    if (!layers.length)
      this.body.replaceChildren(
        h("tr", {}, h("td", { colspan: "5", class: "pbb-dim" }, "No layer of this model can be quantized.")),
      );
    this.applyFilter();
  }

  private add(layer: Layer): void {
    const row = new LayerRow(layer, this.model.get("precisions"), this.model.get("quantizable"), (p) =>
      this.choose([layer.fqn], p),
    );
    this.rows.set(layer.fqn, row);
    this.body.append(row.element);
  }

  private choose(fqns: string[], precision: string): void {
    if (fqns.length) this.model.send({ action: "set_precision", fqns, precision });
  }

  private shown(): string[] {
    return [...this.rows].filter(([, row]) => !row.element.hidden).map(([fqn]) => fqn);
  }

  private applyFilter(): void {
    const needle = this.filter.value.trim().toLowerCase();
    for (const layer of this.model.get("layers")) {
      const row = this.rows.get(layer.fqn);
      if (row) row.element.hidden = needle !== "" && !`${layer.fqn} ${layer.type}`.toLowerCase().includes(needle);
    }
    const counts = new Map<string, number>();
    for (const layer of this.model.get("layers")) counts.set(layer.precision, (counts.get(layer.precision) ?? 0) + 1);
    this.counts.textContent = [...counts].map(([p, n]) => `${n} × ${p}`).join(" · ");
  }
}

function axesView(model: Model): HTMLElement {
  const byPath = new Map<string, Axis[]>();
  for (const axis of model.get("axes")) byPath.set(axis.path, [...(byPath.get(axis.path) ?? []), axis]);
  const rows = [...byPath].map(([path, axes]) =>
    h(
      "div",
      { class: "pbb-axes-row" },
      h("code", {}, path),
      ...axes.map((axis) => {
        const seen = axis.sizes.length ? axis.sizes.join(", ") : "?";
        return h(
          "button",
          {
            type: "button",
            class: "pbb-axis",
            "aria-pressed": String(axis.dynamic),
            "aria-label": `${path} dim ${axis.dim} dynamic`,
            title: `dim ${axis.dim}: sizes in the samples ${seen}. ${axis.dynamic ? "Any size" : "Only this size"} after compiling.`,
            click: () => model.send({ action: "set_axis", path, dim: axis.dim, dynamic: !axis.dynamic }),
          },
          h("b", {}, axis.dynamic ? axis.symbol || `d${axis.dim}` : seen),
          h("small", {}, axis.dynamic ? `dynamic · seen ${seen}` : "static"),
        );
      }),
    ),
  );
  return h("div", {}, ...(rows.length ? rows : [h("p", { class: "pbb-dim" }, "The samples hold no tensors.")]));
}

function targetView(model: Model): HTMLElement {
  const select = h("select", {
    "aria-label": "target",
    change: (event) => model.send({ action: "set_target", target: (event.target as HTMLSelectElement).value }),
  }) as HTMLSelectElement;
  for (const target of model.get("targets")) select.append(h("option", { value: target }, target));
  select.value = model.get("target");
  const parts: Child[] = [h("label", {}, "Target ", select)];
  if (model.get("failures") > 0 || model.get("leaf_wrap")) {
    const box = h("input", {
      type: "checkbox",
      change: (event) => model.send({ action: "set_leaf_wrap", leaf_wrap: (event.target as HTMLInputElement).checked }),
    }) as HTMLInputElement;
    box.checked = model.get("leaf_wrap");
    parts.push(
      h(
        "label",
        { title: "Each module that cannot be captured becomes one opaque operator; only some targets can run those." },
        box,
        " wrap failing modules as leaves",
      ),
    );
  }
  return h("div", { class: "pbb-target" }, ...parts);
}

function runView(model: Model): HTMLElement {
  const running = model.get("running");
  const progress = model.get("progress");
  const fraction = progress.total > 0 ? Math.min(1, progress.done / progress.total) : 0;
  const bar = h("progress", { max: "1", "aria-label": "progress" }) as HTMLProgressElement;
  if (running) bar.value = fraction;
  bar.hidden = !running;
  const text = running
    ? `${progress.stage}${progress.total > 1 ? ` ${progress.done}/${progress.total}` : ""}${progress.message ? ` · ${progress.message}` : ""}`
    : "";
  const message = model.get("message");
  return h(
    "div",
    { class: "pbb-run" },
    h(
      "button",
      { type: "button", class: "pbb-primary", disabled: running, click: () => model.send({ action: "compile" }) },
      "Compile",
    ),
    ...(running ? [h("button", { type: "button", click: () => model.send({ action: "cancel" }) }, "Cancel")] : []),
    bar,
    h("span", { class: "pbb-stage", role: "status" }, text),
    ...(message.text && !running
      ? [
          h(
            "pre",
            { class: `pbb-message pbb-${message.kind}`, role: message.kind === "error" ? "alert" : "status" },
            message.text,
          ),
        ]
      : []),
  );
}

function codeView(model: Model): HTMLElement {
  const copy = h(
    "button",
    {
      type: "button",
      click: () => {
        void navigator.clipboard?.writeText(model.get("code")).then(() => {
          copy.textContent = "Copied";
        });
      },
    },
    "Copy",
  );
  return h(
    "details",
    { class: "pbb-code" },
    h("summary", {}, "The same in Python"),
    copy,
    h("pre", {}, h("code", {}, model.get("code"))),
  );
}

function headerView(model: Model): HTMLElement {
  const step = (action: string, label: string, sign: string, enabled: boolean): HTMLElement =>
    h(
      "button",
      { type: "button", "aria-label": label, title: label, disabled: !enabled, click: () => model.send({ action }) },
      sign,
    );
  return h(
    "header",
    {},
    h("strong", {}, model.get("title")),
    h("span", { class: "pbb-dim" }, model.get("summary")),
    h("span", { class: "pbb-grow" }),
    step("undo", "Undo", "↶", model.get("can_undo")),
    step("redo", "Redo", "↷", model.get("can_redo")),
  );
}

/** A part of the page that is built again whenever one of its traits changes; the focused control keeps the focus. */
function live(model: Model, traits: (keyof State)[], build: () => HTMLElement, cleanups: (() => void)[]): HTMLElement {
  const place = h("div");
  const refresh = (): void => {
    const label = place.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    const open = place.querySelector("details")?.open ?? false;
    place.replaceChildren(build());
    const details = place.querySelector("details");
    if (details) details.open = open;
    if (label) place.querySelector<HTMLElement>(`[aria-label="${CSS.escape(label)}"]`)?.focus();
  };
  for (const trait of traits) {
    model.on(`change:${trait}`, refresh);
    cleanups.push(() => model.off(`change:${trait}`, refresh));
  }
  refresh();
  return place;
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const cleanups: (() => void)[] = [];
  const table = new LayerTable(model);
  const refreshTable = (): void => table.update();
  model.on("change:layers", refreshTable);
  cleanups.push(() => model.off("change:layers", refreshTable));
  const root = h(
    "div",
    { class: "pbb" },
    live(model, ["title", "summary", "can_undo", "can_redo"], () => headerView(model), cleanups),
    section(
      "Dynamic axes",
      "axes",
      live(model, ["axes"], () => axesView(model), cleanups),
    ),
    section("Layers", "layers", table.element),
    section(
      "Compile",
      "compile",
      live(model, ["target", "targets", "leaf_wrap", "failures"], () => targetView(model), cleanups),
      live(model, ["running", "progress", "message"], () => runView(model), cleanups),
    ),
    live(model, ["code"], () => codeView(model), cleanups),
  );
  root.addEventListener("keydown", (event) => event.stopPropagation()); // Lab's shortcuts must not run while typing here
  el.append(root);
  return () => {
    for (const cleanup of cleanups) cleanup();
  };
}

export default { render };
