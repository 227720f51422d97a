import type { ILayoutRestorer, JupyterFrontEnd } from "@jupyterlab/application";
import { WidgetTracker } from "@jupyterlab/apputils";
import { ABCWidgetFactory, type DocumentRegistry, DocumentWidget } from "@jupyterlab/docregistry";
import type { Contents } from "@jupyterlab/services";
import type { Message } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";

import type { DiagramView } from "../render";
import { modelIcon } from "./icons";
import { shown } from "./mime";
import type { Diagrams } from "./registry";

const FILE_TYPE = "prepbench-graph";
const FACTORY = "Model diagram";
const LOOK_EVERY_MS = 2000;
const SETTLED_MS = 200;

/** The content of a tab: the diagram of a file, drawn again when the file changes. */
export class GraphFile extends Widget {
  constructor(
    private readonly context: DocumentRegistry.Context,
    private readonly contents: Contents.IManager,
    diagrams: Diagrams,
  ) {
    super();
    this.addClass("pbl-document");
    this.node.tabIndex = -1;
    this.view = diagrams.create(this);
    this.node.append(this.view.element);
    void context.ready.then(() => {
      if (this.isDisposed) return;
      context.model.contentChanged.connect(this.changed, this);
      void this.reload();
    });
    this.watch = window.setInterval(() => void this.look(), LOOK_EVERY_MS);
  }

  override dispose(): void {
    window.clearInterval(this.watch);
    window.clearTimeout(this.settling);
    super.dispose();
  }

  protected override onActivateRequest(_message: Message): void {
    const inner = this.view.element.querySelector<HTMLElement>("[tabindex='0']");
    (inner ?? this.node).focus({ preventScroll: true });
  }

  private changed(): void {
    window.clearTimeout(this.settling);
    this.settling = window.setTimeout(() => void this.reload(), SETTLED_MS);
  }

  private async reload(): Promise<void> {
    await shown(this.view, this.context.model.toString());
  }

  /** Takes over what another program wrote to the file. */
  private async look(): Promise<void> {
    const known = this.context.contentsModel?.last_modified;
    if (this.looking || !known || !this.isVisible || document.hidden || this.context.model.dirty) return;
    this.looking = true;
    try {
      const file = await this.contents.get(this.context.path, { content: false });
      if (file.last_modified !== known && !this.isDisposed) await this.context.revert();
    } catch {
      // the file is gone for now: what was read last stays
    } finally {
      this.looking = false;
    }
  }

  private readonly view: DiagramView;
  private readonly watch: number;
  private settling = 0;
  private looking = false;
}

class GraphFileFactory extends ABCWidgetFactory<DocumentWidget<GraphFile>> {
  constructor(
    private readonly contents: Contents.IManager,
    private readonly diagrams: Diagrams,
  ) {
    super({ name: FACTORY, modelName: "text", fileTypes: [FILE_TYPE], defaultFor: [FILE_TYPE], readOnly: true });
  }

  protected createNewWidget(context: DocumentRegistry.Context): DocumentWidget<GraphFile> {
    const widget = new DocumentWidget({ content: new GraphFile(context, this.contents, this.diagrams), context });
    widget.title.icon = modelIcon;
    return widget;
  }
}

/** Makes `*.graph.json` files open as diagrams. */
export function addFileType(app: JupyterFrontEnd, diagrams: Diagrams, restorer: ILayoutRestorer | null): void {
  app.docRegistry.addFileType({
    name: FILE_TYPE,
    displayName: "Model graph",
    extensions: [".graph.json"],
    mimeTypes: ["application/json"],
    contentType: "file",
    fileFormat: "text",
    icon: modelIcon,
  });
  const factory = new GraphFileFactory(app.serviceManager.contents, diagrams);
  const tracker = new WidgetTracker<DocumentWidget<GraphFile>>({ namespace: "prepbench-graph" });
  factory.widgetCreated.connect((_, widget) => {
    widget.context.pathChanged.connect(() => void tracker.save(widget));
    void tracker.add(widget);
  });
  app.docRegistry.addWidgetFactory(factory);
  void restorer?.restore(tracker, {
    command: "docmanager:open",
    args: (widget) => ({ path: widget.context.path, factory: FACTORY }),
    name: (widget) => widget.context.path,
  });
}
