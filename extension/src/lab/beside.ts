import type { ILabShell, ILayoutRestorer, JupyterFrontEnd } from "@jupyterlab/application";
import { type ICommandPalette, WidgetTracker } from "@jupyterlab/apputils";
import { PathExt } from "@jupyterlab/coreutils";
import type { Message } from "@lumino/messaging";
import type { ISignal } from "@lumino/signaling";
import { Panel, type Widget } from "@lumino/widgets";

import type { Benches } from "./benches";
import { type Cell, notebookIn } from "./cells";
import { modelIcon } from "./icons";
import { documentPath, element, isNotebook } from "./widgets";

export const OPEN_BESIDE = "prepbench:open-beside";
const CLASS = "pbl-beside";
const NO_BENCH = "The cell shows no bench. Run it to see the bench here.";
const NO_CELL = "The cell of this bench was deleted.";

/** A second view of a cell's bench, in a tab of its own: the same widgets, so that both show one state. */
class BesideTab extends Panel {
  constructor(
    private readonly shell: ILabShell,
    private notebookPath: string,
    readonly cellId: string,
  ) {
    super();
    this.id = `prepbench-beside-${cellId}-${notebookPath}`;
    this.addClass(CLASS);
    this.node.tabIndex = -1;
    this.title.icon = modelIcon;
    this.title.closable = true;
    this.note.setAttribute("role", "status");
    this.node.append(this.note);
    this.entitle();
    shell.layoutModified.connect(this.look, this); // the notebook may be opened later
    this.look();
  }

  /** The notebook's path, which renaming changes. */
  get path(): string {
    return this.notebookPath;
  }

  protected override onActivateRequest(_message: Message): void {
    (this.node.querySelector<HTMLElement>("[role='tab'][tabindex='0']") ?? this.node).focus({ preventScroll: true });
  }

  private look(): void {
    if (this.notebook || this.isDisposed) return;
    this.note.textContent = `${this.notebookPath} is not open. Open it to see its bench here.`;
    const found = [...this.shell.widgets("main")].find((each) => isNotebook(each) && documentPath(each) === this.path);
    if (!found) return;
    this.notebook = found;
    found.disposed.connect(() => this.dispose());
    const { context } = found as unknown as { context: Context };
    context.pathChanged.connect((_, path) => {
      this.notebookPath = path;
      this.entitle();
    });
    void context.ready.then(() => this.renew());
  }

  /** Shows the cell's outputs; again if the cell was moved, which makes it anew. */
  private renew(): void {
    if (this.isDisposed) return;
    for (const widget of [...this.widgets]) widget.dispose();
    const cell = cellsOf(this.notebook).find(({ model }) => model.id === this.cellId);
    this.note.textContent = cell ? NO_BENCH : NO_CELL;
    if (!cell?.cloneOutputArea) return;
    this.addWidget(cell.cloneOutputArea());
    cell.disposed.connect(() => window.setTimeout(() => this.renew()));
  }

  private entitle(): void {
    this.title.label = `Bench · ${PathExt.basename(this.path)}`;
    this.title.caption = `The bench of ${this.path}`;
  }

  private notebook: Widget | null = null;
  private readonly note = element("p", "pbl-beside-note");
}

interface Context {
  readonly ready: Promise<void>;
  readonly pathChanged: { connect(slot: (sender: unknown, path: string) => void): void };
}

/** What is needed of a cell to show its outputs a second time. */
interface ShownCell extends Cell {
  readonly model: Cell["model"] & { readonly id: string };
  readonly node: HTMLElement;
  readonly disposed: ISignal<unknown, void>;
  /** Only of cells with code. */
  cloneOutputArea?(): Widget;
}

function cellsOf(widget: Widget | null): readonly ShownCell[] {
  return (notebookIn(widget)?.widgets ?? []) as readonly ShownCell[];
}

/** What asks for a bench beside its notebook: an element in it, or the command. */
export class Beside {
  /** Whether a bench that comes into a notebook opens by itself. */
  isDefault = false;

  constructor(
    app: JupyterFrontEnd,
    private readonly shell: ILabShell,
    private readonly benches: Benches,
    restorer: ILayoutRestorer | null,
  ) {
    app.commands.addCommand(OPEN_BESIDE, {
      label: "Open the bench beside the notebook",
      caption: "A second view of the bench, split right of its notebook",
      icon: modelIcon,
      describedBy: { args: { type: "object", properties: { path: { type: "string" }, cell: { type: "string" } } } },
      isEnabled: (args) => "cell" in args || this.inFront() !== null,
      execute: ({ path, cell }) => {
        if (typeof path === "string" && typeof cell === "string") this.open(path, cell);
        else this.openFrom(this.inFront());
      },
    });
    benches.arrived.connect((_, bench) => {
      if (this.isDefault) this.openFrom(bench.element, false); // whoever ran the cell goes on there
    });
    void restorer?.restore(this.tracker, {
      command: OPEN_BESIDE,
      args: ({ path, cellId }) => ({ path, cell: cellId }),
      name: ({ path, cellId }) => `${path}:${cellId}`,
    });
  }

  /** Offers the command. */
  offer(palette: ICommandPalette, category: string): void {
    palette.addItem({ command: OPEN_BESIDE, category });
  }

  /** Opens the bench that an element lies in, and goes there or not. */
  openFrom(from: HTMLElement | null, activate = true): void {
    const owner = this.notebookOf(from);
    const cell = from && cellsOf(owner).find(({ node }) => node.contains(from));
    if (owner && cell) this.open(documentPath(owner), cell.model.id, activate);
  }

  private open(path: string, cell: string, activate = true): void {
    let tab = this.tracker.find((each) => each.path === path && each.cellId === cell);
    if (!tab) {
      tab = new BesideTab(this.shell, path, cell);
      const notebook = [...this.shell.widgets("main")].find((each) => documentPath(each) === path);
      this.shell.add(tab, "main", { mode: "split-right", activate, ...(notebook ? { ref: notebook.id } : {}) });
      void this.tracker.add(tab);
    }
    if (activate) this.shell.activateById(tab.id);
  }

  /** The bench to open for the notebook in front: of the active cell, or else the first. */
  private inFront(): HTMLElement | null {
    const { currentWidget } = this.shell;
    const notebook = notebookIn(currentWidget);
    if (!notebook || !currentWidget) return null;
    const outputs = this.benches.outputsWithin(currentWidget.node).map(({ node }) => node);
    const active = cellsOf(currentWidget)[notebook.activeCellIndex];
    return outputs.find((node) => active?.node.contains(node)) ?? outputs[0] ?? null;
  }

  private notebookOf(from: HTMLElement | null): Widget | null {
    if (!from) return null;
    return [...this.shell.widgets("main")].find((each) => isNotebook(each) && each.node.contains(from)) ?? null;
  }

  private readonly tracker = new WidgetTracker<BesideTab>({ namespace: "prepbench-beside" });
}
