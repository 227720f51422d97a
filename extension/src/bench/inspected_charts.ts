/** The charts of an inspected layer: histograms with their grids, ranges by channel, the error. */

import type { InspectedError, InspectedValues } from "../generated/widgets";
import { label, svg, titled } from "../render/svg_parts";
import { shortNumber } from "./numbers";

const [WIDTH, LEFT, RIGHT] = [360, 8, 352];
const [TOP, BOTTOM, HEIGHT] = [8, 104, 124];
const [STRIP_TOP, STRIP_BOTTOM, STRIP_HEIGHT] = [6, 62, 80];
const [DEPTH_WIDTH, DEPTH_RIGHT, DEPTH_HEIGHT] = [720, 712, 130]; // as wide as the other two together
const LINES = 20; // numbers of a grid that the eye can tell apart

/** A share in words; what is there is never "0 %". */
export function shareWords(share: number): string {
  if (share === 0) return "none";
  return share < 1e-4 ? "under 0.01 %" : `${Number((100 * share).toPrecision(2))} %`;
}

/** Whether the grid has no number near a value: what lies there is clipped. */
export function isClipped(value: number, { grid, steps }: Pick<InspectedValues, "grid" | "steps">): boolean {
  if (grid.length < 2) return false;
  const half = (steps.at(-1) ?? 0) / 2;
  return value < grid[0]! - half || value > grid[1]! + half;
}

/** The numbers that values can become, where these are few and the same in all channels. */
export function gridLines({ grid, levels, steps }: Pick<InspectedValues, "grid" | "levels" | "steps">): number[] {
  if (!grid.length || levels > LINES || steps[0] !== steps[1]) return [];
  return Array.from({ length: levels }, (_, at) => grid[0]! + at * steps[0]!);
}

/** The range in words, and the grid. */
export function valuesWords({ low, high, format, steps, clipped, counts, note }: InspectedValues): string {
  if (!counts.length) return note;
  const range = `${shortNumber(low)} to ${shortNumber(high)}`;
  if (!format) return `${range}, stays in float`;
  const [first, last] = [shortNumber(steps[0]), shortNumber(steps[1])];
  return `${range} · ${format}, steps of ${first === last ? first : `${first} to ${last}`} · clipped: ${shareWords(clipped)}`;
}

function scale(low: number, high: number, from: number, to: number): (value: number) => number {
  const size = high - low || 1;
  return (value) => round(from + ((value - low) / size) * (to - from));
}

function root(height: number, words: string, width = WIDTH): SVGElement {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "pbb-inspected", "aria-label": words });
}

export function histogram(values: InspectedValues): SVGElement {
  const { start, width, counts, grid, title } = values;
  const drawn = root(HEIGHT, `${title}: ${valuesWords(values)}`);
  const end = start + width * counts.length;
  const [least, most] = [Math.min(start, ...grid), Math.max(end, ...grid)];
  const x = scale(least, most, LEFT, RIGHT);
  const y = scale(0, Math.max(...counts), BOTTOM, TOP);
  drawn.append(svg("path", { class: "grid", d: `M${LEFT} ${BOTTOM}H${RIGHT}` }));
  for (const line of gridLines(values)) drawn.append(svg("path", { class: "grid", d: `M${x(line)} ${TOP}V${BOTTOM}` }));
  for (const [at, count] of counts.entries()) {
    if (!count) continue;
    const low = start + at * width;
    const clipped = isClipped(low + width / 2, values);
    const high = Math.max(clipped ? 3 : 0.6, round(BOTTOM - y(count))); // few are clipped, and these must be seen
    const bar = svg("rect", {
      class: clipped ? "clipped" : "bar",
      x: x(low),
      y: round(BOTTOM - high),
      width: Math.max(0.8, round(x(low + width) - x(low) - 0.3)),
      height: high,
    });
    bar.append(titled(`${shortNumber(low)} to ${shortNumber(low + width)}: ${count.toLocaleString("en")} values`));
    drawn.append(bar);
  }
  for (const edge of grid) drawn.append(svg("path", { class: "edge", d: `M${x(edge)} ${TOP}V${BOTTOM}` }));
  drawn.append(label(LEFT, HEIGHT - 4, shortNumber(least), "start", "dim"));
  drawn.append(label(RIGHT, HEIGHT - 4, shortNumber(most), "end", "dim"));
  if (least < 0 && most > 0 && x(0) > LEFT + 40 && x(0) < RIGHT - 40)
    drawn.append(label(x(0), HEIGHT - 4, "0", "middle", "dim"));
  return drawn;
}

/** The range of each channel as a line, from its smallest value to its largest. */
export function strip(values: InspectedValues): SVGElement {
  const { lows, highs, grid, clipped_channels: clipped, title } = values;
  const drawn = root(STRIP_HEIGHT, `${title}: ranges of ${lows.length} channels`);
  const y = scale(Math.min(...lows, ...grid), Math.max(...highs, ...grid), STRIP_BOTTOM, STRIP_TOP);
  const each = (RIGHT - LEFT) / lows.length;
  for (const edge of grid) drawn.append(svg("path", { class: "edge", d: `M${LEFT} ${y(edge)}H${RIGHT}` }));
  for (const [at, low] of lows.entries()) {
    const high = highs[at] ?? low;
    const bar = svg("rect", {
      class: clipped[at] ? "clipped" : "bar",
      x: round(LEFT + at * each),
      y: y(high),
      width: Math.max(0.8, round(each - Math.min(1, each / 4))),
      height: Math.max(1, round(y(low) - y(high))),
    });
    const lost = clipped[at] ? `, ${shareWords(clipped[at]!)} clipped` : "";
    bar.append(titled(`channel ${at}: ${shortNumber(low)} to ${shortNumber(high)}${lost}`));
    drawn.append(bar);
  }
  drawn.append(label(LEFT, STRIP_HEIGHT - 4, `range of each of ${lows.length} channels`, "start", "dim"));
  return drawn;
}

/** Outputs in float against quantized ones; a layer without error has all points on the line. */
export function scatter({ reference, quantized, sqnr }: InspectedError): SVGElement {
  const size = 220;
  const drawn = root(size + 20, `Output in float against quantized: ${shortNumber(sqnr)} dB`);
  const all = [...reference, ...quantized];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const [x, y] = [scale(low, high, 44, RIGHT), scale(low, high, size - 18, TOP)];
  drawn.append(svg("path", { class: "edge", d: `M${x(low)} ${y(low)}L${x(high)} ${y(high)}` }));
  for (const [at, value] of reference.entries()) {
    const point = svg("circle", { class: "point", cx: x(value), cy: y(quantized[at]!), r: 2 });
    point.append(titled(`${shortNumber(value)} in float, ${shortNumber(quantized[at])} quantized`));
    drawn.append(point);
  }
  drawn.append(
    label(44, size - 2, shortNumber(low), "start", "dim"),
    label(RIGHT, size - 2, shortNumber(high), "end", "dim"),
  );
  drawn.append(
    label(38, size - 18, shortNumber(low), "end", "dim"),
    label(38, TOP + 8, shortNumber(high), "end", "dim"),
  );
  drawn.append(label((44 + RIGHT) / 2, size + 14, "in float (across), quantized (up)", "middle", "dim"));
  return drawn;
}

/** The SQNR of each output channel; the worst are marked. */
export function channelBars({ channels, together, sqnr }: InspectedError): SVGElement {
  const size = 220;
  const drawn = root(size + 20, `SQNR of ${channels.length} channels`);
  const most = Math.max(...channels, 0);
  const least = Math.min(...channels, 0);
  const y = scale(least, most, size - 18, TOP);
  const each = (RIGHT - 44) / channels.length;
  const worst = Math.min(...channels);
  for (const [at, value] of channels.entries()) {
    const bar = svg("rect", {
      class: value === worst ? "clipped" : "bar",
      x: round(44 + at * each),
      y: Math.min(y(value), y(0)),
      width: Math.max(0.8, round(each - Math.min(1, each / 4))),
      height: Math.max(1, Math.abs(round(y(0) - y(value)))),
    });
    const name = together > 1 ? `channels ${at * together} to ${(at + 1) * together - 1}` : `channel ${at}`;
    bar.append(titled(`${name}: ${value.toFixed(1)} dB`));
    drawn.append(bar);
  }
  if (sqnr !== null && sqnr < most) drawn.append(svg("path", { class: "edge", d: `M44 ${y(sqnr)}H${RIGHT}` }));
  drawn.append(label(38, TOP + 8, `${most.toFixed(0)}`, "end", "dim"), label(38, y(0), "0", "end", "dim"));
  drawn.append(label((44 + RIGHT) / 2, size + 14, "output channel; dB, higher is better", "middle", "dim"));
  return drawn;
}

/** One layer of a chart along the depth of the model; without a value it was left in float. */
export interface DepthBar {
  fqn: string;
  value: number | null;
}

/** The SQNR of all layers in the model's order, the inspected one marked; ranges of it can be brushed. */
export function depthBars(layers: readonly DepthBar[], inspected: string): SVGElement {
  const drawn = root(DEPTH_HEIGHT, `SQNR of ${layers.length} layers along depth`, DEPTH_WIDTH);
  const known = layers.flatMap(({ value }) => (value === null ? [] : [value]));
  const [least, most] = [Math.min(0, ...known), Math.max(0, ...known)];
  const y = scale(least, most, DEPTH_HEIGHT - 20, TOP);
  const each = (DEPTH_RIGHT - 44) / layers.length;
  for (const [at, { fqn, value }] of layers.entries()) {
    const place = { x: round(44 + at * each), width: Math.max(0.8, round(each - Math.min(1, each / 4))) };
    const height = value === null ? 0 : Math.max(1, Math.abs(round(y(0) - y(value))));
    const bar = svg("rect", {
      class: fqn === inspected ? "clipped" : "bar",
      ...place,
      y: value === null ? y(0) : Math.min(y(value), y(0)),
      height,
    });
    // the whole column can be pointed at, as a short bar cannot
    const target = svg("rect", { class: "target", ...place, y: TOP, height: DEPTH_HEIGHT - 20 - TOP, "data-fqn": fqn });
    target.append(titled(`${fqn || "the model itself"}: ${value === null ? "float" : `${value.toFixed(1)} dB`}`));
    drawn.append(bar, target);
  }
  drawn.append(label(38, TOP + 8, most.toFixed(0), "end", "dim"), label(38, y(0), "0", "end", "dim"));
  drawn.append(
    label((44 + DEPTH_RIGHT) / 2, DEPTH_HEIGHT - 6, "layers in order; drag over several to select", "middle", "dim"),
  );
  return drawn;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
