/** The curve of a training, drawn as it comes: the loss of each step, and scores on an axis of their own. */

import type { TrainingCurve } from "../generated/widgets";
import { label, svg, titled } from "../render/svg_parts";
import { shortNumber } from "./numbers";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [720, 260, 72, 648, 30, 218];

interface Scale {
  low: number;
  high: number;
}

/** A place on one of both axes. */
export function placed(value: number, { low, high }: Scale): number {
  return BOTTOM - ((value - low) / (high - low)) * (BOTTOM - TOP);
}

/** The chart; null before anything is known. */
export function curveSvg(training: TrainingCurve): SVGSVGElement | null {
  const { losses, every, scores, scored, metric, by_loss: isLoss, total, best } = training;
  if (!total || (!losses.length && !scores.length)) return null;
  const loss = scaleOf([0, ...losses, ...(isLoss ? scores : [])]);
  const score = isLoss ? loss : scaleOf(scores);
  const x = (step: number): number => round(LEFT + ((RIGHT - LEFT) * step) / total);
  const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "pbb-chart-svg" });
  root.setAttribute("aria-label", spoken(training));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const y = round(BOTTOM - share * (BOTTOM - TOP));
    root.append(svg("path", { class: "grid", d: `M${LEFT} ${y}H${RIGHT}` }));
    root.append(label(LEFT - 8, y + 4, shortNumber(loss.low + share * (loss.high - loss.low)), "end", "dim"));
    if (scores.length && !isLoss) {
      root.append(label(RIGHT + 8, y + 4, shortNumber(score.low + share * (score.high - score.low)), "start", "dim"));
    }
    root.append(label(x(share * total), BOTTOM + 18, shortNumber(Math.round(share * total)), "middle", "dim"));
  }
  root.append(label((LEFT + RIGHT) / 2, HEIGHT - 8, "step", "middle", "dim"));
  root.append(svg("path", { class: "pbb-loss", d: `M${LEFT} 14h18` }), label(LEFT + 24, 18, "loss", "start", ""));
  root.append(label(RIGHT, 18, metric, "end", "pbb-score-word"));
  const points = losses.map((value, at) => [x(Math.min((at + 1) * every, training.step)), round(placed(value, loss))]);
  if (points.length) root.append(svg("path", { class: "pbb-loss", d: line(points) }));
  const marks = scores.map((value, at) => [x(scored[at] ?? 0), round(placed(value, score))]);
  if (marks.length) root.append(svg("path", { class: "pbb-score", d: line(marks) }));
  for (const [at, [cx, cy]] of marks.entries()) {
    const isBest = scored[at] === best;
    const mark = svg("circle", {
      cx: cx!,
      cy: cy!,
      r: isBest ? 7 : 4,
      class: isBest ? "pbb-score pbb-best" : "pbb-score",
    });
    mark.append(
      titled(`after ${scored[at]} steps: ${metric} ${shortNumber(scores[at] ?? null)}${isBest ? ", kept" : ""}`),
    );
    root.append(mark);
  }
  return root as SVGSVGElement;
}

function spoken({ losses, scores, metric, step, total }: TrainingCurve): string {
  const loss = losses.length ? `, loss ${shortNumber(losses[losses.length - 1] ?? null)}` : "";
  const score = scores.length ? `, ${metric} ${shortNumber(scores[scores.length - 1] ?? null)}` : "";
  return `Training: ${step} of ${total} steps${loss}${score}`;
}

function scaleOf(values: readonly number[]): Scale {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = high > low ? (high - low) * 0.05 : Math.abs(high) * 0.1 || 1;
  return { low: low === 0 ? 0 : low - room, high: high + room };
}

function line(points: readonly (readonly number[])[]): string {
  return points.map(([x, y], at) => `${at ? "L" : "M"}${x} ${y}`).join("");
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
