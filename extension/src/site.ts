/**
 * Diagrams and charts in pages of a site that opens from the file system: each is drawn when it comes into sight, by
 * scripts that the site has once. A page may read no file there, so Graphviz and plotly are scripts of their own.
 */

import engine from "engine-script";
import { fromBase64, workerOf } from "./blobs";
import { createDiagram } from "./render";
import { makeSortable } from "./sorted";

interface Plotly {
  newPlot(element: HTMLElement, data: unknown[], layout: object, config: object): Promise<unknown>;
  relayout(element: HTMLElement, changes: object): Promise<unknown>;
}
interface Chart {
  data: unknown[];
  layout?: Record<string, unknown>;
  config?: object;
}
interface Scripts {
  /** The text of the script that lays out. */
  prepbenchLayout?: string;
  Plotly?: Plotly;
}

const HERE = (document.currentScript as HTMLScriptElement).src;
const scripts = globalThis as Scripts;
const asked = new Map<string, Promise<void>>();

/** Runs a script beside this one, once. */
function ran(name: string): Promise<void> {
  const known = asked.get(name);
  if (known) return known;
  const made = new Promise<void>((resolve, reject) => {
    const element = document.createElement("script");
    element.src = new URL(name, HERE).href;
    element.onload = () => resolve();
    element.onerror = () => reject(new Error(`${name} is not beside this page's scripts. Build the site again.`));
    document.head.append(element);
  });
  asked.set(name, made);
  return made;
}

let layout: Promise<string> | null = null;

const assets = {
  engine: () => workerOf(engine),
  layout: async () => {
    layout ??= ran("prepbench-layout.js").then(() => scripts.prepbenchLayout ?? "");
    return workerOf(await layout);
  },
};

function heldBy(element: HTMLElement): string {
  return element.querySelector('script[type="text/plain"]')?.textContent ?? "";
}

/** The picture that was saved stays until the diagram that replaces it has been read. */
async function drawDiagram(element: HTMLElement): Promise<void> {
  const diagram = createDiagram(assets);
  const source = fromBase64(heldBy(element));
  const frame = document.createElement("div");
  frame.className = "pb-frame";
  frame.append(diagram.element);
  element.append(frame);
  await diagram.load(source);
  element.querySelector(".pb-saved")?.remove();
  element.dataset["drawn"] = "";
}

function colours(element: HTMLElement): Record<string, string> {
  const style = getComputedStyle(element);
  // of the theme: it follows the switch
  const line = style.getPropertyValue("--color-background-border").trim() || style.color;
  const found: Record<string, string> = {
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
  };
  for (const axis of Object.keys((element as { layout?: object }).layout ?? {}))
    if (/^[xy]axis\d*$/.test(axis))
      Object.assign(found, { [`${axis}.gridcolor`]: line, [`${axis}.zerolinecolor`]: line });
  return found;
}

async function drawChart(element: HTMLElement): Promise<void> {
  const chart = JSON.parse(heldBy(element)) as Chart;
  await ran("plotly.min.js");
  const frame = document.createElement("div");
  frame.className = "pb-plot";
  element.querySelector(".pb-saved")?.remove();
  element.append(frame);
  const config = { displaylogo: false, responsive: true, ...chart.config };
  await scripts.Plotly!.newPlot(frame, chart.data, chart.layout ?? {}, config);
  const dress = (): void => void scripts.Plotly!.relayout(frame, colours(frame));
  dress();
  new MutationObserver(dress).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
  element.dataset["drawn"] = "";
}

/** Says in the page what went wrong; the saved picture stays. */
function refuse(element: HTMLElement, error: unknown): void {
  const note = document.createElement("p");
  note.setAttribute("role", "alert");
  note.textContent = error instanceof Error ? error.message : String(error);
  element.append(note);
}

const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      const element = target as HTMLElement;
      const draw = element.classList.contains("pb-chart") ? drawChart : drawDiagram;
      draw(element).catch((error: unknown) => refuse(element, error));
    }
  },
  { rootMargin: "300px" },
);

document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".pb-live, .pb-chart")) seen.observe(element);
  for (const table of document.querySelectorAll<HTMLTableElement>("article table.docutils")) makeSortable(table);
});
