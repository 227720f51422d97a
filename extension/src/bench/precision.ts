/** The step in which layers get their precision: what is selected and its settings, filters, the table, the rules. */

import { make } from "../render/dom";
import { BRUSHED } from "./brush";
import { costsView } from "./costs";
import { Editor } from "./editor";
import { readQuery, STATUSES, type Status, widen } from "./filters";
import { previewRows } from "./hover";
import { type Cleanups, listen, live } from "./live";
import { act, type BenchModel } from "./model";
import { reasonsView } from "./reasons";
import { type Asked, type Grouping, Rows, type TableData, withoutRuns } from "./rows";
import { rulesView } from "./rules";
import { SelectionChip } from "./selection";
import { LayerTable } from "./table";

const DECIDED = ["decisions", "planned", "outcomes", "applied"] as const;
const MANY = 30; // layers, from which alike ones are folded at first

const GROUPINGS: readonly { name: Grouping; title: string }[] = [
  { name: "", title: "Single layers" },
  { name: "role", title: "By role" },
  { name: "block", title: "By block" },
];

export class PrecisionStep {
  readonly element: HTMLElement;
  private rows: Rows;
  private readonly asked: Asked & { open: Set<string> };
  private readonly table: LayerTable;
  private readonly editor: Editor;
  private readonly chip: SelectionChip;
  private readonly nothing = make("div", { class: "pbb-nothing", role: "status" });
  private readonly search: HTMLInputElement;
  private readonly types = make("select", { "aria-label": "Type", change: () => this.ask({ type: this.types.value }) });
  private readonly statuses: HTMLSelectElement;
  private readonly group: HTMLSelectElement;
  private found: readonly number[] = [];
  private sent = "";

  constructor(
    private readonly model: BenchModel,
    ends: Cleanups,
    private readonly inspected: (fqn: string) => void,
  ) {
    this.rows = new Rows(this.data());
    const count = this.rows.data.layers.length;
    const grouping = count >= MANY && this.rows.groupCount("role") * 2 <= count ? "role" : "";
    this.asked = { text: "", type: "", status: "all", sort: "", down: false, grouping, open: new Set() };
    this.table = new LayerTable({
      mark: (active) => this.tell(active ? this.nameOf(active.members) : ""),
      sort: (order) => this.ask(order),
      open: (group) => this.toggleGroup(group),
      edit: () => this.editor.focus(),
    });
    this.chip = new SelectionChip(
      (text) => this.selectText(text),
      () => this.clear(),
    );
    this.editor = new Editor(
      {
        precision: (precision) => act(model, "set_precision", { pattern: this.patterns(), precision }),
        setting: (field, value) => act(model, "set_layers", { pattern: this.patterns(), field, value }),
        reset: () => this.reset(),
      },
      this.chip.element,
    );
    this.search = this.searchBox();
    this.statuses = this.statusBox();
    this.group = this.groupBox();
    const rules = live(model, ["rules", "base"], rulesView, ends);
    const reasons = live(model, ["layers", ...DECIDED], reasonsView, ends);
    this.element = make(
      "div",
      { class: "pbb-layers" },
      this.editor.element,
      make(
        "div",
        { class: "pbb-toolbar" },
        this.search,
        this.statuses,
        this.types,
        this.group,
        this.table.menu.element,
      ),
      this.table.element,
      this.nothing,
      costsView(model, ends),
      reasons,
      rules,
    );
    const namesAt = (target: Element): string[] => this.table.membersAt(target).map((layer) => this.nameOf([layer]));
    previewRows(this.table.element, namesAt, ends);
    this.element.addEventListener(BRUSHED, (event) => this.selectLayers((event as CustomEvent<string[]>).detail));
    this.follow(ends);
    this.fillTypes();
    this.ask({});
    this.select();
  }

  /** What only exists once the step is seen. */
  shown(): void {
    this.table.refresh();
    this.table.revealMarked();
  }

  /** Puts the inspector under the table. */
  place(inspector: HTMLElement): void {
    this.nothing.after(inspector);
  }

  private follow(ends: Cleanups): void {
    const others = ["columns", "stale", "settings", "precisions", "expected", "base"] as const;
    listen(this.model, [...DECIDED, ...others], () => this.update(), ends);
    listen(this.model, ["layers"], () => this.replace(), ends);
    listen(this.model, ["selected"], () => this.select(), ends);
  }

  private data(): TableData {
    const { model } = this;
    return {
      layers: model.get("layers"),
      decisions: model.get("decisions"),
      planned: withoutRuns(model.get("planned")),
      outcomes: model.get("outcomes"),
      applied: model.get("applied"),
      columns: model.get("columns"),
    };
  }

  private replace(): void {
    this.rows = new Rows(this.data());
    this.table.marked.layers.clear();
    this.fillTypes();
    this.ask({});
  }

  private update(): void {
    this.rows.data = this.data();
    this.ask({});
  }

  private ask(change: Partial<Asked>): void {
    Object.assign(this.asked, change);
    const list = this.rows.rows(this.asked);
    const order = { sort: this.asked.sort, down: this.asked.down };
    this.table.show(this.rows, list, this.asked.open, order, this.model.get("stale"));
    this.found = [...new Set(list.flatMap(({ members }) => members))];
    this.group.value = this.asked.grouping;
    this.sayNothing(this.found.length, this.rows.data.layers.length);
    this.edit();
  }

  private edit(): void {
    const layers = this.selected();
    const decisions = new Set([...layers].map((layer) => this.rows.decision(layer)));
    const isOwn = this.table.marked.layers.size > 0 || this.isFiltered();
    const pattern = layers.size ? this.patterns().join(", ") : this.asked.text.trim();
    this.chip.show({ pattern: isOwn ? pattern : "", layers: layers.size, isOwn });
    this.editor.show({
      decisions: [...decisions].filter((decision) => decision !== null),
      layers: layers.size,
      precisions: this.model.get("precisions"),
      settings: this.model.get("settings"),
      expected: this.model.get("expected"),
    });
  }

  /** What the buttons act on: the marked layers, else what the filter leaves, which without a filter are all. */
  private selected(): ReadonlySet<number> {
    const { layers } = this.table.marked;
    return layers.size ? layers : new Set(this.found);
  }

  private isFiltered(): boolean {
    const { text, type, status } = this.asked;
    return text.trim() !== "" || type !== "" || status !== "all";
  }

  /** What is selected, in few keys of rules. */
  private patterns(): string[] {
    const layers = this.selected();
    if (!this.table.marked.layers.size && !this.isFiltered()) return ["*"];
    return this.rows.patternsFor(layers, this.asked.text);
  }

  /** A text that is typed into the chip becomes the filter. */
  private selectText(text: string): void {
    this.table.marked.layers.clear();
    this.search.value = text;
    this.types.value = "";
    this.statuses.value = "all";
    this.ask({ text, type: "", status: "all" });
    this.tell("");
  }

  /** Selects layers by their names; what is not in the table has none. */
  selectLayers(names: readonly string[]): void {
    const wanted = new Set(names);
    this.selectText("");
    this.rows.data.layers.forEach(({ fqn }, layer) => {
      if (wanted.has(fqn)) this.table.marked.layers.add(layer);
    });
    this.table.revealMarked();
    this.edit();
  }

  /** Removes the rules that decide for what is selected, of both kinds. */
  private reset(): void {
    const [quantizing, pruning] = [this.deciding("rule"), this.deciding("pruned_by")];
    if (quantizing.length) act(this.model, "clear_rules", { pattern: quantizing });
    if (pruning.length) act(this.model, "clear_pruning", { pattern: pruning });
  }

  private deciding(by: "rule" | "pruned_by"): string[] {
    const rules = [...this.selected()].map((layer) => this.rows.decision(layer)?.[by] ?? "");
    const own = this.model.get("rules").filter(({ prunes }) => Boolean(prunes) === (by === "pruned_by"));
    const known = new Set(own.map(({ pattern }) => pattern));
    return [...new Set(rules)].filter((rule) => known.has(rule));
  }

  private nameOf(layers: readonly number[]): string {
    return layers.length ? (this.rows.data.layers[layers[0]!]?.fqn ?? "") : "";
  }

  /** Tells Python what is selected, and shows the editor of what is marked at once. */
  private tell(fqn: string): void {
    this.edit();
    if (this.table.marked.layers.size === 1) this.inspected(fqn);
    if (fqn === this.sent && fqn === this.model.get("selected")) return;
    this.sent = fqn;
    act(this.model, "select", { fqn });
  }

  /** Marks what was selected elsewhere: a layer, or all layers of a module. */
  private select(): void {
    const fqn = this.model.get("selected");
    if (fqn === this.sent) return;
    this.sent = fqn;
    const { marked } = this.table;
    marked.layers.clear();
    if (fqn) {
      this.rows.data.layers.forEach((layer, at) => {
        if (layer.fqn === fqn || layer.fqn.startsWith(`${fqn}.`)) marked.layers.add(at);
      });
    }
    if (marked.layers.size === 1) this.asked.open.add(this.rows.groupOf([...marked.layers][0]!, this.asked.grouping));
    this.ask({});
    this.table.revealMarked();
  }

  private toggleGroup(group: string): void {
    if (!this.asked.open.delete(group)) this.asked.open.add(group);
    this.ask({});
  }

  private searchBox(): HTMLInputElement {
    const box = make("input", {
      type: "search",
      placeholder: "Filter: conv, *.q, re:q|k",
      title: "Part of a name or type; a pattern over whole names with * and ?; or re: and a regular expression",
      "aria-label": "Filter layers",
      input: () => this.ask({ text: box.value }),
      keydown: (event: KeyboardEvent) => {
        if (event.key !== "ArrowDown") return;
        event.preventDefault();
        this.table.focus();
      },
    });
    return box;
  }

  private statusBox(): HTMLSelectElement {
    const change = (): void => this.ask({ status: select.value as Status });
    const select = make("select", { "aria-label": "Status", change });
    for (const { name, title } of STATUSES) select.append(make("option", { value: name }, title));
    return select;
  }

  private groupBox(): HTMLSelectElement {
    const change = (): void => this.ask({ grouping: select.value as Grouping });
    const title = "By role: layers whose names differ in indices only become one row. By block: those of one block";
    const select = make("select", { "aria-label": "Rows", title, change });
    for (const { name, title: words } of GROUPINGS) select.append(make("option", { value: name }, words));
    return select;
  }

  private fillTypes(): void {
    const types = [...new Set(this.rows.data.layers.map(({ type }) => type))].sort();
    const options = types.map((type) => make("option", { value: type }, type));
    this.types.replaceChildren(make("option", { value: "" }, "Any type"), ...options);
    this.types.hidden = types.length < 2;
  }

  private sayNothing(found: number, total: number): void {
    this.nothing.hidden = found > 0;
    this.table.element.hidden = found === 0;
    if (found > 0) return;
    if (total === 0) {
      this.nothing.replaceChildren("No layer of this model can be quantized. It can still be compiled: go to Run.");
      return;
    }
    const { text, type, status } = this.asked;
    const limits = [type, status === "all" ? "" : STATUSES.find(({ name }) => name === status)!.title.toLowerCase()];
    const also = limits.filter(Boolean).join(", ");
    const what = text.trim() ? `fits “${text.trim()}”${also ? ` (${also})` : ""}` : `is ${also}`;
    const said = text.trim() ? "No name or type among" : "None of";
    const click = (): void => this.clear();
    const clear = make("button", { click }, "Show all layers");
    this.nothing.replaceChildren(`${said} ${total} layers ${what}. ${widen(text, readQuery(text))} `, clear);
  }

  private clear(): void {
    this.selectText("");
    this.search.focus();
  }
}
