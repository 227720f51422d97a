/** What a kernel's variables offer to a bench, and the code that a bench begins with. */

import type { Kernel } from "@jupyterlab/services";

import type { KernelVariables, ModelVariable, SampleVariable } from "../generated/variables";

const ASKED =
  "__import__('prepbench.bench.variables', fromlist=['variables']).variables()" +
  " if 'torch' in __import__('sys').modules else None";
const PATIENCE_MS = 30_000;
const NONE: KernelVariables = { models: [], samples: [], bench: "bench", package: "pb" };

/** Something to tell the person in place of the variables. */
export class NoVariables extends Error {}

/**
 * Asks a kernel for its models and samples. It evaluates one expression of ours: silent, in no history, and no variable
 * is set.
 */
export async function variablesOf(kernel: Kernel.IKernelConnection): Promise<KernelVariables> {
  const language = (await kernel.spec)?.language.toLowerCase();
  if (language !== undefined && language !== "python")
    throw new NoVariables(`The kernel speaks ${language}. Models of PyTorch are in kernels of Python.`);
  const future = kernel.requestExecute({
    code: "",
    silent: true,
    store_history: false,
    allow_stdin: false,
    stop_on_error: false,
    user_expressions: { prepbench: ASKED },
  });
  const late = new Promise<null>((resolve) => window.setTimeout(() => resolve(null), PATIENCE_MS));
  const reply = await Promise.race([future.done, late]);
  if (reply === null) {
    future.dispose();
    throw new NoVariables("The kernel did not answer. Try again when it is idle.");
  }
  const { content } = reply;
  return read(content.status === "ok" ? content.user_expressions["prepbench"] : null);
}

interface Answer {
  readonly status?: string;
  readonly data?: Readonly<Record<string, unknown>>;
  readonly ename?: string;
  readonly evalue?: string;
}

/** What the kernel answered, checked: it may run another version, or none. */
export function read(answer: unknown): KernelVariables {
  const { status, data, ename, evalue } = (answer ?? {}) as Answer;
  if (status === "error" && ename === "ModuleNotFoundError")
    throw new NoVariables(`prepbench cannot be imported in this kernel (${evalue}). Install it there.`);
  if (status !== "ok")
    throw new NoVariables(`The kernel could not look: ${[ename, evalue].filter(Boolean).join(": ")}`);
  const found = data?.["application/json"] as Partial<KernelVariables> | undefined;
  if (found === undefined) return NONE;
  if (
    !isName(found.bench) ||
    !isName(found.package) ||
    !listOf(found.models, isModel) ||
    !listOf(found.samples, isSample)
  )
    throw new NoVariables("The kernel runs another version of prepbench than JupyterLab. Update both, then reload.");
  return found as KernelVariables;
}

function listOf<T>(value: unknown, holds: (item: unknown) => item is T): value is T[] {
  return Array.isArray(value) && value.every(holds);
}

function isName(value: unknown): value is string {
  return typeof value === "string" && /^[\p{L}_][\p{L}\p{M}\p{N}\p{Pc}]*$/u.test(value);
}

function isModel(value: unknown): value is ModelVariable {
  const { name, type, parameters } = value as ModelVariable;
  return isName(name) && typeof type === "string" && typeof parameters === "number";
}

function isSample(value: unknown): value is SampleVariable {
  const { name, expression, text, fits } = value as SampleVariable;
  return isName(name) && [name, `[${name}]`].includes(expression) && typeof text === "string" && Array.isArray(fits);
}

/** A model in a list to choose from. */
export function modelLine({ name, type, parameters }: ModelVariable): string {
  return `${name} · ${type} · ${parameters < 0 ? "size not known" : `${parameters.toLocaleString("en")} parameters`}`;
}

/** Samples in a list to choose from. */
export function sampleLine({ name, text, fits }: SampleVariable, model: string): string {
  return `${name} · ${text}${fits.includes(model) ? "" : " · forward takes other arguments"}`;
}

/** The samples that a model takes first, then the others. */
export function samplesFor(model: string, { samples }: KernelVariables): SampleVariable[] {
  const fits = (sample: SampleVariable): boolean => sample.fits.includes(model);
  return [...samples.filter(fits), ...samples.filter((sample) => !fits(sample))];
}

/** The cell that makes a bench; without samples there is a place for them. */
export function benchCode(model: string, samples: string | null, { bench, package: name }: KernelVariables): string {
  const start = name === "prepbench" ? "import prepbench" : `import prepbench as ${name}`;
  const call =
    samples === null
      ? `${name}.Bench(\n    ${model},\n    calibration_inputs=[...],  # put here representative samples\n)`
      : `${name}.Bench(${model}, calibration_inputs=${samples})`;
  return `${start}\n\n${bench} = ${call}\n${bench}`;
}
