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

const LOOK_EVERY_MS = 2000;
const SETTLED_MS = 200;

/** A kind of file that opens in a tab. */
export interface FileKind {
  readonly type: string;
  readonly factory: string;
  readonly displayName: string;
  readonly extension: string;
  create(context: FileTab.Context): FileTab;
}

/** The content of a tab: what a file holds, shown again when the file changes. */
export abstract class FileTab extends Widget {
  constructor(
    private readonly context: FileTab.Context,
    private readonly contents: Contents.IManager,
  ) {
    super();
    this.addClass("pbl-document");
    this.node.tabIndex = -1;
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

  /** Shows the text of the file; what cannot be read is told in the tab. */
  protected abstract display(text: string): Promise<void>;

  protected override onActivateRequest(_message: Message): void {
    const inner = this.node.querySelector<HTMLElement>("[tabindex='0']");
    (inner ?? this.node).focus({ preventScroll: true });
  }

  private changed(): void {
    window.clearTimeout(this.settling);
    this.settling = window.setTimeout(() => void this.reload(), SETTLED_MS);
  }

  private async reload(): Promise<void> {
    await this.display(this.context.model.toString());
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

  private readonly watch: number;
  private settling = 0;
  private looking = false;
}

export namespace FileTab {
  export type Context = DocumentRegistry.Context;
}

/** A tab with the diagram of a file. */
class GraphFile extends FileTab {
  constructor(context: FileTab.Context, contents: Contents.IManager, diagrams: Diagrams) {
    super(context, contents);
    this.view = diagrams.create(this);
    this.node.append(this.view.element);
  }

  protected display(text: string): Promise<void> {
    return shown(this.view, text);
  }

  private readonly view: DiagramView;
}

class FileFactory extends ABCWidgetFactory<DocumentWidget<FileTab>> {
  constructor(private readonly kind: FileKind) {
    super({ name: kind.factory, modelName: "text", fileTypes: [kind.type], defaultFor: [kind.type], readOnly: true });
  }

  protected createNewWidget(context: DocumentRegistry.Context): DocumentWidget<FileTab> {
    const widget = new DocumentWidget({ content: this.kind.create(context), context });
    widget.title.icon = modelIcon;
    return widget;
  }
}

/** `*.graph.json` files open as diagrams. */
export function graphFiles(app: JupyterFrontEnd, diagrams: Diagrams): FileKind {
  return {
    type: "prepbench-graph",
    factory: "Model diagram",
    displayName: "Model graph",
    extension: ".graph.json",
    create: (context) => new GraphFile(context, app.serviceManager.contents, diagrams),
  };
}

/** Makes a kind of file open in tabs, which come back with the page. */
export function addFileType(app: JupyterFrontEnd, kind: FileKind, restorer: ILayoutRestorer | null): void {
  app.docRegistry.addFileType({
    name: kind.type,
    displayName: kind.displayName,
    extensions: [kind.extension],
    mimeTypes: ["application/json"],
    contentType: "file",
    fileFormat: "text",
    icon: modelIcon,
  });
  const factory = new FileFactory(kind);
  const tracker = new WidgetTracker<DocumentWidget<FileTab>>({ namespace: kind.type });
  factory.widgetCreated.connect((_, widget) => {
    widget.context.pathChanged.connect(() => void tracker.save(widget));
    void tracker.add(widget);
  });
  app.docRegistry.addWidgetFactory(factory);
  void restorer?.restore(tracker, {
    command: "docmanager:open",
    args: (widget) => ({ path: widget.context.path, factory: kind.factory }),
    name: (widget) => widget.context.path,
  });
}
