/** What can be taken away: the bench itself, an ONNX file, a report, the code. */

import type { BenchActions, Card } from "../generated/widgets";
import { download, make } from "../render/dom";
import { type Answer, asker } from "./ask";
import { DIM } from "./dim";
import { type Cleanups, live } from "./live";
import { cardView, TAKE } from "./message";
import { act, type BenchModel } from "./model";

type What = BenchActions["download"]["what"];
type Write = "save" | "report" | "export_onnx" | "save_model";

const NOT_LIVE = "The shown run has no compiled model in this kernel.";

interface Typed {
  path: string | null;
}

interface Events {
  write(action: Write, path: string): void;
  download(what: What): void;
}

export function takeAway(model: BenchModel, ends: Cleanups): HTMLElement {
  const said = make("div");
  const tell = (now: Card | string): void => {
    said.replaceChildren(
      typeof now === "string" ? make("span", { ...DIM, role: "status" }, now) : cardView(model, now),
    );
    said.scrollIntoView({ block: "nearest" });
  };
  const pieces: DataView[] = [];
  const arrived = ({ name, card, part = 1, parts = 1 }: Answer, buffers: readonly DataView[]): void => {
    if (part === 1) pieces.length = 0;
    pieces.push(...buffers);
    if (part === parts && pieces.length) save(name ?? "prepbench", pieces.splice(0));
    const share = parts > 1 && part < parts ? `Receiving ${name}: ${Math.round((100 * part) / parts)} %` : "";
    tell(card ?? (share || `${name} was downloaded.`));
  };
  const askToWrite = asker(model, "written", ({ card }) => tell(card ?? ""), ends);
  const askToSend = asker(model, "download", arrived, ends);
  const events: Events = {
    write: (action, path) => {
      tell("Writing …");
      askToWrite(action, { path });
    },
    download: (what) => {
      tell("Preparing …");
      askToSend("download", { what });
    },
  };
  // what was typed stays when the buttons are made again
  const typed: Typed = { path: null };
  said.addEventListener(TAKE, ((event: CustomEvent<[string, string]>) => {
    const [action, value] = event.detail;
    if (action === "download") events.download(value as What);
    else events.write("save_model", value);
  }) as EventListener);
  return make(
    "section",
    { class: "pbb-stack", "aria-label": "Take away" },
    make("h4", {}, "Take away"),
    live(model, ["runs", "shown_run", "title"], () => buttonsOf(model, events, typed), ends),
    said,
  );
}

function save(name: string, pieces: readonly DataView[]): void {
  const bytes = pieces.map((data) => new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength));
  download(name, new Blob(bytes));
}

/** Why a run cannot be exported, and the button that makes it possible. */
function compileAgain(model: BenchModel, id: string): HTMLElement {
  const click = (): void => {
    act(model, "restore_run", { id });
    act(model, "compile", {});
  };
  return make("div", { class: "pbb-line" }, make("span", DIM, NOT_LIVE), make("button", { click }, "Compile it again"));
}

function buttonsOf(model: BenchModel, { write, download }: Events, typed: Typed): HTMLElement {
  const shown = model.get("runs").find((run) => run.id === model.get("shown_run"));
  const isLive = shown?.is_live ?? false;
  const file = (/\w[\w-]*/.exec(model.get("title"))?.[0] ?? "model").toLowerCase();
  const title = "A path on the kernel's machine, without an ending";
  const value = typed.path ?? file;
  const path = make("input", { type: "text", value, "aria-label": "File name", title });
  path.addEventListener("input", () => {
    typed.path = path.value;
  });
  const where = (ending: string): string => `${path.value.trim() || file}${ending}`;
  const button = (label: string, help: string, click: () => void, disabled = false): HTMLElement =>
    make("button", { title: help, disabled, click }, label);
  const why = isLive ? "The compiled model of the shown run" : NOT_LIVE;
  const saved = "Choices and results, as a file that JupyterLab opens and Bench.load reads";
  const page = "One page with all of it, which needs no network";
  return make(
    "div",
    { class: "pbb-stack" },
    make(
      "div",
      { class: "pbb-line" },
      path,
      button("Save bench", saved, () => write("save", where(".bench.json"))),
      button(
        "Save model",
        `${why}, as a folder that pb.load_compiled reads`,
        () => write("save_model", where("")),
        !isLive,
      ),
      button("Export ONNX", why, () => write("export_onnx", where(".onnx")), !isLive),
      button("Report", page, () => write("report", where(".html"))),
    ),
    ...(shown && !isLive ? [compileAgain(model, shown.id)] : []),
    make(
      "div",
      { class: "pbb-line" },
      make("span", DIM, "Through the browser:"),
      button("Download model", `${why}, as a zip of its folder`, () => download("model"), !isLive),
      button("Download ONNX", why, () => download("onnx"), !isLive),
      button("Download report", page, () => download("report")),
      button("Download code", "The same in Python, as a file", () => download("code")),
    ),
  );
}
