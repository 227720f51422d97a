/** Benches as they were saved, in files and outputs: read and checked, and what "Open in a notebook" writes. */

import type { ShownBench } from "../generated/saved";
import schema from "../generated/saved.json";
import type { Source } from "../render";
import { DocumentError, type Schema, validate } from "../render/read";

export const BENCH_MIME_TYPE = "application/vnd.prepbench.bench+json";

const FORMAT = "prepbench bench";
const MAJOR = "1";
const DEFINITIONS = schema.$defs as Record<string, Schema>;

/** What can be shown of a bench without a kernel; the graph is read by the diagram itself. */
const NO_SAMPLES = { first: "", second: "", caption: "", samples: [] };

export interface SavedBench {
  readonly shown: ShownBench;
  readonly graph: Source | null;
}

/** Reads the text of a file. */
export function parseBench(text: string): SavedBench {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new DocumentError(`The file is not valid JSON, or it is cut off (${why}). Save the bench again.`);
  }
  return checkBench(data);
}

/** Checks what a file or an output holds; every message names the place. */
export function checkBench(data: unknown): SavedBench {
  const fields = typeof data === "object" && data !== null ? (data as Record<string, unknown>) : {};
  if (fields["format"] !== FORMAT)
    throw new DocumentError("This is no saved bench. bench.save('model.bench.json') writes one.");
  const version = typeof fields["version"] === "string" ? fields["version"] : "none";
  if (version.split(".")[0] !== MAJOR)
    throw new DocumentError(`The bench was saved as version ${version}. Update prepbench, then reload the page.`);
  const given = fields["shown"];
  const isObject = typeof given === "object" && given !== null;
  const shown = (isObject ? { samples: NO_SAMPLES, ...given } : given) as ShownBench; // files of 1.0 have none
  validate(shown, DEFINITIONS["ShownBench"]!, "bench.shown", DEFINITIONS);
  for (const table of shown.tables)
    if (table.rows.some((row) => row.length !== table.columns.length))
      throw new DocumentError(`A row of "${table.title}" has other columns than its table. Save the bench again.`);
  const graph = fields["graph"];
  return { shown, graph: typeof graph === "object" ? graph : null };
}

/** The cell that opens a saved bench; `file` lies in the folder of the notebook. */
export function loadingCode(file: string, model: string): string {
  const name = /^[A-Za-z_][A-Za-z0-9_]*$/.test(model) ? model : "the model";
  return `import prepbench as pb

model = ...  # put here the ${name} that the bench was made for
samples = [...]  # put here representative samples

bench = pb.Bench.load(${JSON.stringify(file)}, model=model, calibration_inputs=samples)
bench`;
}
