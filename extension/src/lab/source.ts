import type { JupyterFrontEnd } from "@jupyterlab/application";
import { Clipboard, Notification } from "@jupyterlab/apputils";
import type { CodeEditor } from "@jupyterlab/codeeditor";
import { PageConfig, PathExt } from "@jupyterlab/coreutils";
import type { Widget } from "@lumino/widgets";
import type { Notebook } from "./cells";
import { findCell, isCell, lineInEditor, notebookIn } from "./cells";
import { candidates } from "./paths";
import type { OpenSource } from "./registry";
import { documentPath, holds } from "./widgets";

const PATIENCE_MS = 3000;

/** Makes the function that opens source lines: in an editor, in the notebook's cell, or else as a message. */
export function sourceOpener(app: JupyterFrontEnd): OpenSource {
  return (file, line, host, code) => {
    const main = [...app.shell.widgets("main")];
    const owner =
      main.find((widget) => (host instanceof HTMLElement ? widget.node.contains(host) : holds(widget, host))) ?? null;
    const opening = isCell(file)
      ? openCell(app, owner, main, file, line, code)
      : openFile(app, PathExt.dirname(documentPath(owner)), file, line);
    opening.catch((reason: unknown) =>
      tellPlace(`${file}:${line} could not be opened (${String(reason)})`, file, line),
    );
  };
}

async function openFile(app: JupyterFrontEnd, folder: string, file: string, line: number): Promise<void> {
  const root = { serverRoot: PageConfig.getOption("serverRoot"), rootUri: PageConfig.getOption("rootUri") };
  for (const path of candidates(file, root, folder)) {
    if (!(await isFile(app, path))) continue;
    const opened: unknown = await app.commands.execute("docmanager:open", { path, factory: "Editor" });
    const widget = opened as { context?: { ready: Promise<void> }; content?: FileContent } | undefined;
    await widget?.context?.ready;
    await widget?.content?.ready;
    if (widget?.content?.editor) goTo(widget.content.editor, line);
    return;
  }
  tellPlace(`${file}:${line} is not in the folder that JupyterLab shows.`, file, line);
}

interface FileContent {
  readonly ready?: Promise<void>;
  readonly editor?: CodeEditor.IEditor;
}

function isFile(app: JupyterFrontEnd, path: string): Promise<boolean> {
  return app.serviceManager.contents.get(path, { content: false }).then(
    ({ type }) => type === "file",
    () => false,
  );
}

async function openCell(
  app: JupyterFrontEnd,
  owner: Widget | null,
  main: readonly Widget[],
  file: string,
  line: number,
  code?: string,
): Promise<void> {
  for (const widget of owner ? [owner, ...main.filter((other) => other !== owner)] : main) {
    const notebook = notebookIn(widget);
    const index = notebook ? findCell(notebook.widgets, file, line, code) : -1;
    if (!notebook || index < 0) continue;
    app.shell.activateById(widget.id);
    await showCell(notebook, index, line, code);
    return;
  }
  const what = code ? `: ${code}` : "";
  Notification.info(`The code is in line ${line} of a cell that has changed since or is not open${what}`);
}

async function showCell(notebook: Notebook, index: number, line: number, code = ""): Promise<void> {
  notebook.activeCellIndex = index;
  await notebook.scrollToItem?.(index, "smart");
  const cell = notebook.widgets[index];
  await Promise.race([cell?.ready, new Promise((done) => window.setTimeout(done, PATIENCE_MS))]);
  if (!cell?.editor) return;
  notebook.mode = "edit";
  const source = cell.model.sharedModel.getSource();
  goTo(cell.editor, lineInEditor(source, line, code) || lineInEditor(source, line));
}

function goTo(editor: CodeEditor.IEditor, line: number): void {
  const position = { line: Math.min(Math.max(line, 1), editor.lineCount) - 1, column: 0 };
  editor.focus();
  editor.setCursorPosition(position);
  editor.revealPosition(position);
}

function tellPlace(message: string, file: string, line: number): void {
  Clipboard.copyToSystem(`${file}:${line}`);
  Notification.info(`${message} Its path was copied.`, { autoClose: 8000 });
}
