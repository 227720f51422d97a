/** Samples on which two candidates differ: images, texts with the deviating token marked, sounds, numbers. */

import type { SampleBox, SamplePart, ShownSample, ShownSamples } from "./generated/saved";
import { svg, titled } from "./render/svg_parts";

const [WIDTH, HEIGHT] = [240, 44]; // of a drawn waveform
const TALLEST = 220; // pixels of an image
const PICTURE = "data:image/png;base64,";
const SOUND = "data:audio/wav;base64,";

/** The samples, or why there are none; null where nothing is compared. */
export function samplesView(shown: ShownSamples): HTMLElement | null {
  if (!shown.first || !(shown.caption || shown.samples.length)) return null;
  const place = element("section", "pbs");
  place.setAttribute("aria-label", "Samples on which they differ most");
  place.append(...(shown.caption ? [element("p", "pbs-dim", shown.caption)] : []));
  place.append(...shown.samples.map((sample) => sampleView(sample, shown)));
  place.addEventListener("play", (event) => playOnly(place, event.target), true);
  return place;
}

function sampleView(sample: ShownSample, { first, second }: ShownSamples): HTMLElement {
  const place = element("div", "pbs-sample");
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", sample.place);
  const head = element("div", "pbs-head");
  head.append(element("b", "", sample.place), element("span", "pbs-dim", sample.distance));
  if (sample.target) head.append(element("span", "pbs-dim", `target ${sample.target}`));
  const sides = element("div", "pbs-sides");
  const parts: [string, readonly SamplePart[]][] = [
    ["Input", sample.inputs],
    [first, sample.first],
    [second, sample.second],
  ];
  for (const [name, given] of parts) {
    const side = element("div", "pbs-side");
    side.append(element("div", "pbs-name", name), ...given.map((part) => partView(part, name)));
    sides.append(side);
  }
  place.append(head, sides);
  return place;
}

function partView(part: SamplePart, owner: string): HTMLElement {
  const place = element("div", `pbs-part pbs-${part.modality}`);
  const about = [part.name, part.said].filter(Boolean).join(": ");
  if (part.modality === "image" && part.picture.startsWith(PICTURE)) place.append(imageOf(part, `${owner} ${about}`));
  else if (part.modality === "audio") place.append(...soundOf(part, about, owner));
  else if (part.modality === "text") place.append(textOf(part));
  else place.append(element("span", "pbs-numbers", about || "–"));
  if (part.modality !== "numbers" && about) place.append(element("small", "pbs-dim", about));
  return place;
}

function imageOf(part: SamplePart, about: string): HTMLElement {
  const frame = element("div", "pbs-frame");
  const image = element("img");
  image.src = part.picture;
  image.alt = about;
  const ratio = Math.max(part.width, 1) / Math.max(part.height, 1);
  frame.style.aspectRatio = String(ratio);
  frame.style.maxWidth = `${Math.round(TALLEST * ratio)}px`;
  frame.append(image);
  if (part.boxes.length) frame.append(boxesOf(part.boxes), ...part.boxes.map(labelOf));
  return frame;
}

function boxesOf(boxes: readonly SampleBox[]): SVGElement {
  const root = svg("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", role: "img" });
  root.setAttribute("aria-label", boxes.map(({ text }) => text).join(", "));
  for (const { left, top, width, height, text } of boxes) {
    const box = svg("rect", { x: left, y: top, width: Math.max(width, 0), height: Math.max(height, 0) });
    box.append(titled(text));
    root.append(box);
  }
  return root;
}

/** The class of a box stands at its upper edge; what is drawn in the box's own square would be stretched with it. */
function labelOf({ left, top, text }: SampleBox): HTMLElement {
  const label = element("span", "pbs-label", text);
  label.ariaHidden = "true"; // the boxes are named
  label.style.left = percent(left);
  label.style.top = percent(top);
  return label;
}

/** A share of a length, for a style. */
function percent(share: number): string {
  return `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(1)}%`;
}

/** A token without letters, such as the end of a line, is shown by a sign. */
function textOf({ same, other, rest, said }: SamplePart): HTMLElement {
  const text = element("p", "pbs-said");
  text.tabIndex = 0; // it may scroll
  text.append(same);
  if (said) {
    const mark = element("mark", "", other === "" ? "∅" : other.replaceAll("\n", "↵\n"));
    mark.title = said;
    text.append(mark);
  }
  text.append(rest);
  return text;
}

/** The outline of a waveform: the highest values from left to right, and the lowest ones back. */
export function outline(wave: readonly number[]): string {
  const count = Math.floor(wave.length / 2);
  const point = (at: number, value: number): string =>
    `${((WIDTH * at) / count).toFixed(1)} ${((HEIGHT / 2) * (1 - value)).toFixed(1)}`;
  const up: string[] = [];
  const down: string[] = [];
  for (let at = 0; at < count; at++) {
    down.unshift(point(at, wave[2 * at]!));
    up.push(point(at, wave[2 * at + 1]!));
  }
  return count ? `M${[...up, ...down].join("L")}Z` : "";
}

function waveOf({ wave, heard }: SamplePart, about: string): SVGElement {
  const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  root.setAttribute("class", "pbs-wave");
  root.setAttribute("aria-label", `Waveform of ${about}`);
  const [begin = 0, end = 1] = heard;
  if (end - begin < 1)
    root.append(svg("rect", { x: WIDTH * begin, y: 0, width: WIDTH * (end - begin), height: HEIGHT }));
  root.append(svg("path", { d: outline(wave) }));
  return root;
}

/** A waveform, and under it what can be heard of it; a line goes through it as it plays. */
function soundOf(part: SamplePart, about: string, owner: string): Element[] {
  const wave = waveOf(part, about);
  if (!part.sound.startsWith(SOUND)) return [wave];
  const sound = element("audio");
  sound.controls = true;
  sound.preload = "metadata";
  sound.src = part.sound;
  sound.setAttribute("aria-label", `Listen to ${owner} ${part.name}`);
  const [begin = 0, end = 1] = part.heard;
  const line = svg("line", { y1: 0, y2: HEIGHT });
  const move = (): void => {
    const x = WIDTH * (begin + (end - begin) * (sound.currentTime / (sound.duration || 1)));
    for (const name of ["x1", "x2"]) line.setAttribute(name, x.toFixed(1));
    wave.append(line);
    if (!sound.paused) requestAnimationFrame(move);
  };
  sound.addEventListener("play", move);
  sound.addEventListener("seeked", move);
  return [wave, sound];
}

/** Two sounds at once cannot be compared. */
function playOnly(place: HTMLElement, playing: EventTarget | null): void {
  for (const sound of place.querySelectorAll("audio")) if (sound !== playing) sound.pause();
}

/** An element with a class and a text; texts are never read as HTML. */
function element<K extends keyof HTMLElementTagNameMap>(tag: K, className = "", text = ""): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
