/** What can be taken away: the bench itself, an ONNX file, a report, the code. */

import type { BenchActions } from "../generated/widgets";
import { download, make } from "../render/dom";
import { type Cleanups, listen, live } from "./live";
import { act, type BenchModel } from "./model";

type What = BenchActions["download"]["what"];
type Answer = { action?: string; name?: string; error?: string; path?: string };

interface Events {
  write(action: "save" | "report" | "export_onnx", path: string): void;
  download(what: What): void;
}

export function takeAway(model: BenchModel, ends: Cleanups): HTMLElement {
  const said = make("span", { class: "pbb-dim", role: "status" });
  const answered = (message: Answer, buffers: DataView[]): void => {
    if (message.action === "written") said.textContent = `Written to ${message.path}.`;
    if (message.action !== "download") return;
    const data = buffers[0];
    if (data) save(message.name ?? "prepbench", data);
    said.textContent = data ? `${message.name} was downloaded.` : (message.error ?? "Python sent nothing.");
  };
  model.on("msg:custom", answered as never);
  ends.push(() => model.off("msg:custom", answered as never));
  const failed = (): void => {
    if (model.get("message").kind === "error") said.textContent = model.get("message").text;
  };
  listen(model, ["message"], failed, ends);
  const events: Events = {
    write: (action, path) => {
      said.textContent = "Writing …";
      act(model, action, { path });
    },
    download: (what) => {
      said.textContent = "Preparing …";
      act(model, "download", { what });
    },
  };
  return make(
    "section",
    { class: "pbb-stack", "aria-label": "Take away" },
    make("h4", {}, "Take away"),
    live(model, ["runs", "shown_run", "title"], () => buttonsOf(model, events), ends),
    said,
  );
}

function save(name: string, data: DataView): void {
  const bytes = new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
  download(name, new Blob([bytes]));
}

function buttonsOf(model: BenchModel, { write, download }: Events): HTMLElement {
  const shown = model.get("runs").find((run) => run.id === model.get("shown_run"));
  const isLive = shown?.is_live ?? false;
  const file = (/\w[\w-]*/.exec(model.get("title"))?.[0] ?? "model").toLowerCase();
  const title = "A path on the kernel's machine, without an ending";
  const path = make("input", { type: "text", value: file, "aria-label": "File name", title });
  const where = (ending: string): string => `${path.value.trim() || file}${ending}`;
  const button = (label: string, help: string, click: () => void, disabled = false): HTMLElement =>
    make("button", { type: "button", title: help, disabled, click }, label);
  const why = isLive
    ? "The compiled model of the shown run"
    : "The shown run has no compiled model here: compile again";
  const saved = "Choices and results, as a file that JupyterLab opens and Bench.load reads";
  const page = "One page with all of it, which needs no network";
  return make(
    "div",
    { class: "pbb-stack" },
    make(
      "div",
      { class: "pbb-line" },
      path,
      button("Save", saved, () => write("save", where(".bench.json"))),
      button("Export ONNX", why, () => write("export_onnx", where(".onnx")), !isLive),
      button("Report", page, () => write("report", where(".html"))),
    ),
    make(
      "div",
      { class: "pbb-line" },
      make("span", { class: "pbb-dim" }, "Through the browser:"),
      button("Download report", page, () => download("report")),
      button("Download ONNX", why, () => download("onnx"), !isLive),
      button("Download code", "The same in Python, as a file", () => download("code")),
    ),
  );
}
