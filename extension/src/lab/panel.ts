import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { Message } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";

import type { DiagramView } from "../render";
import type { Benches } from "./benches";
import { failureList } from "./failures";
import { modelIcon } from "./icons";
import type { Diagrams, Living, OpenSource } from "./registry";
import { isFailure } from "./rows";
import { runList } from "./runs";
import { bringIntoSight } from "./sight";
import { ModuleTree, TreeState } from "./tree";
import { element, isGraphFile, isNotebook } from "./widgets";

export const PANEL_ID = "prepbench-model-panel";
const NOTHING = "Run a cell that shows a captured model, or open a .graph.json file, to see its modules here.";

/** The modules and failures of the diagram in front, and the runs of the benches there. */
export class ModelPanel extends Widget {
  constructor(
    private readonly shell: JupyterFrontEnd.IShell,
    private readonly diagrams: Diagrams,
    private readonly openSource: OpenSource,
    private readonly benches: Benches,
  ) {
    super();
    this.id = PANEL_ID;
    this.addClass("pbl-panel");
    this.title.icon = modelIcon;
    this.title.caption = "Model";
    this.filter.type = "search";
    this.filter.placeholder = "Filter modules";
    this.filter.setAttribute("aria-label", "Filter modules");
    this.choice.setAttribute("aria-label", "Diagram");
    this.filter.addEventListener("input", () => this.showTree());
    this.choice.addEventListener("change", () => {
      const chosen = this.choices[this.choice.selectedIndex];
      if (chosen) diagrams.use(chosen);
    });
    this.node.append(this.choice, this.failures, this.runs, this.filter, this.tree.element, this.nothing);
    diagrams.changed.connect(() => this.update());
    benches.changed.connect(() => this.update());
    diagrams.loaded.connect((_, view) => {
      this.states.delete(view);
      this.update();
    });
    this.update();
  }

  /** Turns to the widget that is in front now; one without models leaves the panel as it is. */
  turnTo(widget: Widget | null): void {
    const isHome = isNotebook(widget) || isGraphFile(widget);
    if (widget && (isHome || this.diagrams.within(widget).length > 0)) this.front = widget;
    this.update();
  }

  protected override onActivateRequest(_message: Message): void {
    if (this.current) this.tree.element.focus();
  }

  protected override onUpdateRequest(_message: Message): void {
    if (this.front?.isDisposed) this.front = null;
    this.choices = this.front ? this.diagrams.within(this.front) : [];
    this.showRuns();
    const next = this.diagrams.lastUsed(this.choices);
    if (next !== this.current) this.follow(next);
    else void this.refresh();
  }

  private showRuns(): void {
    const at = this.runs.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    const list = runList(this.front ? this.benches.within(this.front.node) : [], {
      show: (bench, { id }) => {
        bench.show(id);
        const output = this.benches.outputOf(bench.element);
        if (output) void bringIntoSight(this.shell, output);
      },
      restore: (bench, { id }) => bench.restore(id),
    });
    this.runs.replaceChildren(...(list ? [list] : []));
    if (at) this.runs.querySelector<HTMLElement>(`[aria-label="${CSS.escape(at)}"]`)?.focus();
  }

  private follow(next: Living | null): void {
    this.unfollow();
    this.current = next;
    this.unfollow = next?.view.onSelect((fqns) => this.tree.select(fqns)) ?? (() => undefined);
    void this.refresh();
  }

  private async refresh(): Promise<void> {
    const current = this.current;
    this.drawings += 1;
    const drawing = this.drawings;
    const heads = await Promise.all(this.choices.map(({ view }) => this.stateOf(view)));
    if (drawing !== this.drawings || this.isDisposed) return;
    this.choice.replaceChildren(...heads.map((state, place) => new Option(titleOf(state, place))));
    this.choice.selectedIndex = current ? this.choices.indexOf(current) : -1;
    const state = heads[this.choice.selectedIndex];
    const isEmpty = !state || state.items.length === 0;
    this.choice.hidden = this.choices.length < 2;
    this.filter.hidden = this.tree.element.hidden = this.failures.hidden = isEmpty;
    this.nothing.hidden = !isEmpty;
    if (isEmpty || !current) return;
    this.showFailures(current, state);
    if (state === this.state) return;
    this.state = state;
    this.showTree();
    this.tree.select(current.view.selected);
  }

  /** Shows the failures again where what can be done about them has changed. */
  private showFailures(current: Living, state: TreeState): void {
    const bench = this.benches.around(current.view.element);
    const rows = state.items.map(({ row }) => row);
    const offers = new Map(rows.filter(isFailure).map(({ fqn }) => [fqn, bench?.offers(fqn) ?? []]));
    const key = JSON.stringify([...offers]);
    if (state === this.state && key === this.offered) return;
    this.offered = key;
    const list = failureList(rows, {
      reveal: (fqn: string) => void this.reveal(fqn),
      openSource: (file: string, line: number, code: string) => this.openSource(file, line, current.host, code),
      offers: (fqn) => offers.get(fqn) ?? [],
    });
    this.failures.replaceChildren(...(list ? [list] : []));
  }

  private showTree(): void {
    if (this.state) this.tree.show(this.state, this.filter.value);
  }

  private async stateOf(view: DiagramView): Promise<TreeState> {
    const known = this.states.get(view);
    if (known) return known;
    const state = new TreeState(await view.tree().catch(() => []));
    if (state.items.length > 0) this.states.set(view, state);
    return state;
  }

  private async reveal(fqn: string): Promise<void> {
    const current = this.current;
    if (!current) return;
    await bringIntoSight(this.shell, current.host);
    await current.view.reveal(fqn);
  }

  private front: Widget | null = null;
  private choices: Living[] = [];
  private current: Living | null = null;
  private state: TreeState | null = null;
  private drawings = 0;
  private offered = "";
  private unfollow: () => void = () => undefined;
  private readonly states = new WeakMap<DiagramView, TreeState>();
  private readonly choice = element("select", "pbl-choice");
  private readonly failures = element("div", "pbl-failures-place");
  private readonly runs = element("div", "pbl-failures-place");
  private readonly filter = element("input", "pbl-filter");
  private readonly tree = new ModuleTree((fqn) => void this.reveal(fqn));
  private readonly nothing = element("p", "pbl-nothing", NOTHING);
}

function titleOf(state: TreeState, place: number): string {
  const root = state.items[0]?.row;
  return `${place + 1} · ${root?.type ?? "…"}`;
}
