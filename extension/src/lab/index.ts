import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import { ILauncher } from "@jupyterlab/launcher";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import { ISettingRegistry } from "@jupyterlab/settingregistry";

import { PLACE, type Shared } from "../shared";
import { assets } from "./assets";
import { benchFiles } from "./benchfile";
import { benchRendererFactory } from "./benchoutput";
import { addCommands } from "./commands";
import { addFileType, graphFiles } from "./document";
import { cellInserter } from "./insert";
import { rendererFactory } from "./mime";
import { ModelPanel } from "./panel";
import { Diagrams, type OpenSource } from "./registry";
import { followSettings } from "./settings";
import { sourceOpener } from "./source";

const PLUGIN_ID = "prepbench-lab:plugin";

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description:
    "Shows captured models: in outputs, in tabs of *.graph.json and *.bench.json files, and their modules in a side panel.",
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ISettingRegistry, ICommandPalette, ILauncher, IDefaultFileBrowser, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    settings: ISettingRegistry | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    browser: IDefaultFileBrowser | null,
    restorer: ILayoutRestorer | null,
  ): void => {
    const openSource = sourceOpener(app);
    const diagrams = new Diagrams(openSource);
    shareWithWidgets(app, diagrams, openSource);
    rendermime.addFactory(rendererFactory(diagrams), 0);
    rendermime.addFactory(benchRendererFactory(diagrams));
    for (const kind of [graphFiles(app, diagrams), benchFiles(app, diagrams)]) addFileType(app, kind, restorer);
    addPanel(app, new ModelPanel(app.shell, diagrams, openSource), restorer);
    addCommands(app, { palette, launcher, browser });
    if (settings) {
      followSettings(settings, PLUGIN_ID, (look) => diagrams.setLook(look)).catch((reason: unknown) => {
        console.warn("The settings of the diagrams could not be read; the defaults are used.", reason);
      });
    }
  },
};

/** Widgets of the same page use the scripts that are here already, and appear in the panel. */
function shareWithWidgets(app: JupyterFrontEnd, diagrams: Diagrams, openSource: OpenSource): void {
  const shared: Shared = {
    assets,
    adopt: (view) => diagrams.adopt(view),
    openSource: (file, line, code, from) => openSource(file, line, from, code),
    insertBelow: cellInserter(app),
  };
  Object.assign(globalThis, { [PLACE]: shared });
}

function addPanel(app: JupyterFrontEnd, panel: ModelPanel, restorer: ILayoutRestorer | null): void {
  app.shell.add(panel, "right", { rank: 900 });
  restorer?.add(panel, panel.id);
  app.shell.currentChanged?.connect(() => panel.turnTo(app.shell.currentWidget));
  void app.restored.then(() => panel.turnTo(app.shell.currentWidget));
}

export default plugin;
