import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import { ILauncher } from "@jupyterlab/launcher";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import { ISettingRegistry } from "@jupyterlab/settingregistry";

import { PLACE, type Shared } from "../shared";
import { assets } from "./assets";
import { Benches } from "./benches";
import { benchFiles } from "./benchfile";
import { benchRendererFactory } from "./benchoutput";
import { Beside } from "./beside";
import { addCommands, CATEGORY } from "./commands";
import { addFileType, graphFiles } from "./document";
import { cellInserter } from "./insert";
import { Keeper } from "./keeper";
import { watchKernels } from "./kernels";
import { rendererFactory } from "./mime";
import { ModelPanel } from "./panel";
import { addPrepareCommand } from "./prepare";
import { Diagrams, type OpenSource } from "./registry";
import { offerRepairs } from "./repair";
import { followSettings, type Settings } from "./settings";
import { sourceOpener } from "./source";

const PLUGIN_ID = "prepbench-lab:plugin";

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description:
    "Shows captured models: in outputs, in tabs of *.graph.json and *.bench.json files, and their modules in a side panel.",
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ISettingRegistry, ICommandPalette, ILauncher, IDefaultFileBrowser, ILayoutRestorer, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    settings: ISettingRegistry | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    browser: IDefaultFileBrowser | null,
    restorer: ILayoutRestorer | null,
    labShell: ILabShell | null,
  ): void => {
    const openSource = sourceOpener(app);
    const diagrams = new Diagrams(openSource);
    const benches = new Benches(app.shell);
    const beside = labShell && new Beside(app, labShell, benches, restorer);
    const keeper = new Keeper(benches);
    watchKernels(app.shell, benches, diagrams);
    shareWithWidgets(app, diagrams, openSource);
    shareWithBenches(benches, beside);
    rendermime.addFactory(rendererFactory(diagrams));
    rendermime.addFactory(benchRendererFactory(diagrams, benches));
    for (const kind of [graphFiles(app, diagrams), benchFiles(app, diagrams)]) addFileType(app, kind, restorer);
    addPanel(app, new ModelPanel(app.shell, diagrams, openSource, benches), restorer);
    addCommands(app, { palette, launcher, browser });
    offerRepairs(app);
    addPrepareCommand(app, palette, CATEGORY);
    if (palette) beside?.offer(palette, CATEGORY);
    if (settings) {
      const apply = ({ look, keepBenches, openBeside }: Settings): void => {
        diagrams.setLook(look);
        keeper.isOn = keepBenches;
        if (beside) beside.isDefault = openBeside;
      };
      followSettings(settings, PLUGIN_ID, apply).catch((reason: unknown) => {
        console.warn("The settings of prepbench could not be read; the defaults are used.", reason);
      });
    }
  },
};

/** Widgets of the same page use the scripts that are here already, and appear in the panel. */
function shareWithWidgets(app: JupyterFrontEnd, diagrams: Diagrams, openSource: OpenSource): void {
  const shared: Shared = {
    assets,
    adopt: (view, lose) => diagrams.adopt(view, lose),
    openSource: (file, line, code, from) => openSource(file, line, from, code),
    insertBelow: cellInserter(app),
  };
  Object.assign(globalThis, { [PLACE]: shared });
}

/** Benches are kept in their outputs, appear in the panel, and open beside the notebook where there is room. */
function shareWithBenches(benches: Benches, beside: Beside | null): void {
  const shared: Shared = { adoptBench: (bench) => benches.adopt(bench) };
  if (beside) shared.openBeside = (from) => beside.openFrom(from);
  Object.assign((globalThis as Record<symbol, Shared | undefined>)[PLACE] ?? {}, shared);
}

function addPanel(app: JupyterFrontEnd, panel: ModelPanel, restorer: ILayoutRestorer | null): void {
  app.shell.add(panel, "right", { rank: 900 });
  restorer?.add(panel, panel.id);
  app.shell.currentChanged?.connect(() => panel.turnTo(app.shell.currentWidget));
  void app.restored.then(() => panel.turnTo(app.shell.currentWidget));
}

export default plugin;
