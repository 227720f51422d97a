import type { JupyterFrontEnd } from "@jupyterlab/application";
import { PathExt } from "@jupyterlab/coreutils";

import { BenchView } from "./benchview";
import { openNotebook } from "./commands";
import { type FileKind, FileTab } from "./document";
import type { Diagrams } from "./registry";
import { loadingCode, parseBench } from "./saved";

const NOTE = "This is the bench as it was saved. To choose, compile and compare, load it with its model in a notebook.";

/** A tab with a saved bench. */
class BenchFile extends FileTab {
  constructor(app: JupyterFrontEnd, context: FileTab.Context, diagrams: Diagrams) {
    super(context, app.serviceManager.contents);
    this.addClass("pbl-bench-file");
    const open = (): void => {
      const folder = PathExt.dirname(context.path);
      void openNotebook(app, folder, [loadingCode(PathExt.basename(context.path), this.model)]);
    };
    this.view = new BenchView(this, diagrams, NOTE, open);
    this.node.append(this.view.element);
  }

  protected async display(text: string): Promise<void> {
    try {
      const saved = parseBench(text);
      this.model = saved.shown.title;
      await this.view.show(saved);
    } catch (error) {
      this.view.refuse(error);
    }
  }

  private readonly view: BenchView;
  private model = "";
}

/** `*.bench.json` files open as the bench that was saved. */
export function benchFiles(app: JupyterFrontEnd, diagrams: Diagrams): FileKind {
  return {
    type: "prepbench-bench",
    factory: "Saved bench",
    displayName: "Model bench",
    extension: ".bench.json",
    create: (context) => new BenchFile(app, context, diagrams),
  };
}
