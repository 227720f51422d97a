import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { ICommandPalette } from "@jupyterlab/apputils";
import type { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import type { ILauncher } from "@jupyterlab/launcher";

import { modelIcon } from "./icons";
import { PANEL_ID } from "./panel";
import type { KernelSpec } from "./template";
import { notebookOf, notebookTemplate } from "./template";

export const CATEGORY = "prepbench";
const NEW_NOTEBOOK = "prepbench:new-notebook";
const SHOW_PANEL = "prepbench:show-panel";

/** Where commands are offered; each may be missing. */
export interface Places {
  readonly palette: ICommandPalette | null;
  readonly launcher: ILauncher | null;
  readonly browser: IDefaultFileBrowser | null;
}

export function addCommands(app: JupyterFrontEnd, { palette, launcher, browser }: Places): void {
  app.commands.addCommand(NEW_NOTEBOOK, {
    label: "New model preparation notebook",
    caption: "A notebook that captures a model, shows it and opens the bench",
    icon: modelIcon,
    describedBy: {
      args: {
        type: "object",
        properties: { cwd: { type: "string", description: "The folder to create the notebook in." } },
      },
    },
    execute: ({ cwd }) => newNotebook(app, typeof cwd === "string" ? cwd : (browser?.model.path ?? "")),
  });
  app.commands.addCommand(SHOW_PANEL, {
    label: "Show model panel",
    caption: "The modules and failures of the model in front, and the runs of its bench",
    icon: modelIcon,
    describedBy: { args: { type: "object", properties: {} } },
    execute: () => app.shell.activateById(PANEL_ID),
  });
  for (const command of [NEW_NOTEBOOK, SHOW_PANEL]) palette?.addItem({ command, category: CATEGORY });
  launcher?.add({ command: NEW_NOTEBOOK, category: CATEGORY });
}

function newNotebook(app: JupyterFrontEnd, folder: string): Promise<unknown> {
  return created(app, folder, notebookTemplate(pythonKernel(app)));
}

/** Opens a new notebook with these cells. */
export function openNotebook(app: JupyterFrontEnd, folder: string, cells: readonly string[]): Promise<unknown> {
  return created(app, folder, notebookOf(cells, pythonKernel(app)));
}

async function created(app: JupyterFrontEnd, folder: string, content: object): Promise<unknown> {
  const { contents } = app.serviceManager;
  const { path } = await contents.newUntitled({ path: folder, type: "notebook" });
  await contents.save(path, { type: "notebook", format: "json", content });
  return app.commands.execute("docmanager:open", { path, factory: "Notebook" });
}

function pythonKernel(app: JupyterFrontEnd): KernelSpec | null {
  const specs = app.serviceManager.kernelspecs.specs;
  const all = Object.values(specs?.kernelspecs ?? {}).filter((spec) => spec?.language === "python");
  const spec = all.find((candidate) => candidate?.name === specs?.default) ?? all[0];
  return spec ? { name: spec.name, display_name: spec.display_name, language: spec.language } : null;
}
