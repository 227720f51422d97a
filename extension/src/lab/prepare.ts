import type { JupyterFrontEnd } from "@jupyterlab/application";
import { Dialog, type ICommandPalette, showDialog } from "@jupyterlab/apputils";
import type { Kernel } from "@jupyterlab/services";
import { Widget } from "@lumino/widgets";

import type { KernelVariables } from "../generated/variables";
import { type Cell, notebookIn } from "./cells";
import { modelIcon } from "./icons";
import { insertCell } from "./insert";
import { benchCode, modelLine, NoVariables, sampleLine, samplesFor, variablesOf } from "./variables";
import { element } from "./widgets";

export const PREPARE_MODEL = "prepbench:prepare-model";
const TITLE = "Prepare a model of this kernel";
const MOMENT_MS = 1500; // what our own widgets ask takes less
const LATER = "-";
const NO_MODULE = "No variable of this kernel is a torch.nn.Module. Run a cell that makes one, such as:";
const EXAMPLE =
  "import torch\n\nmodel = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()\nsamples = [torch.rand(8, 4)]";

/** The command that makes a bench for one of the models among the variables of the notebook in front. */
export function addPrepareCommand(app: JupyterFrontEnd, palette: ICommandPalette | null, category: string): void {
  app.commands.addCommand(PREPARE_MODEL, {
    label: `${TITLE} …`,
    caption: "A bench for one of the models among the notebook's variables",
    icon: modelIcon,
    describedBy: { args: { type: "object", properties: {} } },
    execute: () => prepare(app),
  });
  palette?.addItem({ command: PREPARE_MODEL, category });
}

interface Session {
  readonly sessionContext?: { readonly session: { readonly kernel: Kernel.IKernelConnection | null } | null };
}

async function prepare(app: JupyterFrontEnd): Promise<void> {
  const { currentWidget } = app.shell;
  const notebook = notebookIn(currentWidget);
  if (!currentWidget || !notebook) return tell("Open the notebook that has the model, and try again.");
  const kernel = (currentWidget as Session).sessionContext?.session?.kernel ?? null;
  if (kernel === null || kernel.isDisposed || ["dead", "terminating"].includes(kernel.status))
    return tell("The notebook has no kernel. Choose one, run the cells that make the model, and try again.");
  if (notebook.widgets.some(isRunning) || (await staysBusy(kernel)))
    return tell("The kernel is busy. Its variables can be looked through once the running cells have ended.");
  try {
    const found = await variablesOf(kernel);
    if (found.models.length === 0) return tell(NO_MODULE, EXAMPLE);
    await offer(app, currentWidget, found);
  } catch (reason) {
    if (!(reason instanceof NoVariables)) throw reason;
    return tell(reason.message);
  }
}

async function offer(app: JupyterFrontEnd, notebook: Widget, found: KernelVariables): Promise<void> {
  const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: "Insert and run" })];
  const { button, value } = await showDialog({ title: TITLE, body: new Choices(found), buttons });
  const content = notebookIn(notebook);
  if (!button.accept || !value || !content) return;
  app.shell.activateById(notebook.id);
  insertCell(notebook, content.activeCellIndex + 1, value.code);
  if (value.isWhole) await app.commands.execute("notebook:run-cell");
}

/** Whether a cell is running: the status of a kernel is also that of what debuggers and widgets ask meanwhile. */
function isRunning({ model }: Cell): boolean {
  return (model as { executionState?: string }).executionState === "running";
}

/** Whether a kernel is busy, now and in a moment. */
function staysBusy(kernel: Kernel.IKernelConnection): Promise<boolean> {
  return new Promise((resolve) => {
    const end = (): void => {
      kernel.statusChanged.disconnect(look);
      window.clearTimeout(timer);
      resolve(kernel.status === "busy");
    };
    const look = (): void => {
      if (kernel.status === "idle") end();
    };
    const timer = window.setTimeout(end, MOMENT_MS);
    kernel.statusChanged.connect(look);
    look();
  });
}

async function tell(text: string, code = ""): Promise<void> {
  const body = new Widget();
  body.node.append(element("p", "", text));
  if (code) body.node.append(element("pre", "pbl-prepare-code", code));
  await showDialog({ title: TITLE, body, buttons: [Dialog.okButton()] });
}

interface Chosen {
  readonly code: string;
  /** Whether the code can be run as it is. */
  readonly isWhole: boolean;
}

/** The model, the samples, and the code that they give. */
class Choices extends Widget implements Dialog.IBodyWidget<Chosen> {
  constructor(private readonly found: KernelVariables) {
    super();
    this.addClass("pbl-prepare");
    for (const model of found.models) this.model.append(new Option(modelLine(model), model.name));
    this.model.addEventListener("change", () => this.listSamples());
    this.samples.addEventListener("change", () => this.showCode());
    this.node.append(labelled("Model", this.model), labelled("Samples", this.samples), this.code);
    this.listSamples();
  }

  getValue(): Chosen {
    const sample = this.found.samples.find(({ name }) => name === this.samples.value);
    return { code: benchCode(this.model.value, sample?.expression ?? null, this.found), isWhole: sample !== undefined };
  }

  private listSamples(): void {
    const { value } = this.model;
    const options = samplesFor(value, this.found).map((one) => new Option(sampleLine(one, value), one.name));
    this.samples.replaceChildren(...options, new Option("None of the variables: leave a place for them", LATER));
    this.showCode();
  }

  private showCode(): void {
    this.code.textContent = this.getValue().code;
  }

  private readonly model = element("select");
  private readonly samples = element("select");
  private readonly code = element("pre", "pbl-prepare-code");
}

function labelled(text: string, control: HTMLElement): HTMLElement {
  const made = element("label", "", text);
  made.append(control);
  return made;
}
