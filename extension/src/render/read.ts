/** Documents from outside: unpacked, checked against the schema and for modules that hold each other. */

import type { DiagramDocument, GraphCollectionDocument } from "../generated/document";
import schema from "../generated/schema.json";
import type { Source } from "./api";
import { checkHierarchy, checkNumber, checkText, DocumentError } from "./checks";

export { checkHierarchy, DocumentError };

export const VERSION = "1.2";

export interface Schema {
  $ref?: string;
  anyOf?: Schema[];
  enum?: unknown[];
  type?: string;
  items?: Schema;
  properties?: Record<string, Schema>;
}

const DEFINITIONS = schema.$defs as Record<string, Schema>;
const AGAIN = "Trace the model again and save it anew.";

/** Reads what a file, an output or a widget holds; a collection becomes a diagram with one document. */
export async function read(source: Source): Promise<DiagramDocument> {
  return check(await parsed(source));
}

async function parsed(source: Source): Promise<unknown> {
  if (source instanceof Uint8Array) return parse(await unzip(source));
  if (typeof source === "string") return parsed(parse(source) as object);
  const packed = (source as { gzip?: unknown } | null)?.gzip;
  if (typeof packed !== "string") return source;
  return parse(await unzip(bytes(packed)));
}

function bytes(base64: string): Uint8Array {
  try {
    return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  } catch {
    throw new DocumentError(`The packed document is no base64 text. ${AGAIN}`);
  }
}

async function unzip(data: Uint8Array): Promise<string> {
  try {
    return await new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  } catch {
    throw new DocumentError(`The packed document is damaged or cut off. ${AGAIN}`);
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new DocumentError(`The document is not valid JSON, or it is cut off (${why}). ${AGAIN}`);
  }
}

/** Checks a parsed document; every message names the place. */
export function check(data: unknown): DiagramDocument {
  if (typeof data !== "object" || data === null || Array.isArray(data))
    throw new DocumentError("The document must be a JSON object.");
  checkVersion((data as { version?: unknown }).version);
  fillIn(data);
  if ("documents" in data) {
    validate(data, DEFINITIONS["DiagramDocument"]!, "document");
    const diagram = data as DiagramDocument;
    if (!diagram.documents.length)
      throw new DocumentError("The document holds no graphs: its list of documents is empty.");
    diagram.documents.forEach(checkHierarchy);
    return diagram;
  }
  validate(data, DEFINITIONS["GraphCollectionDocument"]!, "document");
  const collection = data as GraphCollectionDocument;
  checkHierarchy(collection);
  return {
    documents: [collection],
    titles: [],
    arrangement: "levels",
    overlays: [],
    overlay: "",
    marks: [],
    version: VERSION,
  };
}

/** Fields that documents of version 1.1 lack. */
function fillIn(data: object): void {
  const { documents } = data as { documents?: unknown };
  for (const document of Array.isArray(documents) ? documents : [data])
    if (typeof document === "object" && document?.version === "1.1") document.sizes ??= [];
}

function checkVersion(version: unknown): void {
  const found = typeof version === "string" ? version : "none";
  const [major = 0, minor = 0] = found.split(".").map(Number);
  if (major === 1 && minor >= 1) return;
  const newer = major > 1;
  throw new DocumentError(
    `This document has version ${found}; this diagram reads ${VERSION}. ` +
      (newer
        ? "A newer prepbench wrote it: update prepbench, then reload the page."
        : `An older prepbench wrote it. ${AGAIN}`),
  );
}

/** Refuses a value that does not fit a schema; the message names the place. */
export function validate(value: unknown, kind: Schema, path: string, known = DEFINITIONS): void {
  if (kind.$ref) validate(value, known[kind.$ref.slice(8)]!, path, known);
  else if (kind.anyOf) {
    if (value !== null) validate(value, kind.anyOf[0]!, path, known);
  } else if (kind.enum) {
    if (!kind.enum.includes(value))
      throw new DocumentError(`${path} must be one of ${kind.enum.join(", ")}, got ${shown(value)}.`);
  } else if (kind.type === "array") {
    if (!Array.isArray(value)) throw new DocumentError(`${path} must be a list, got ${shown(value)}.`);
    for (let i = 0; i < value.length; i++) validate(value[i], kind.items!, `${path}[${i}]`, known);
  } else if (kind.type === "object") validateObject(value, kind, path, known);
  else if (!(kind.type === "integer" ? Number.isInteger(value) : typeof value === kind.type))
    throw new DocumentError(`${path} must be of type ${kind.type}, got ${shown(value)}.`);
  else if (typeof value === "string") checkText(value, path);
  else if (typeof value === "number") checkNumber(value, path, kind.type === "integer");
}

function validateObject(value: unknown, kind: Schema, path: string, known: Record<string, Schema>): void {
  if (typeof value !== "object" || value === null)
    throw new DocumentError(`${path} must be an object, got ${shown(value)}.`);
  for (const name in kind.properties) {
    if (!(name in value)) throw new DocumentError(`${path} lacks the field "${name}".`);
    validate((value as Record<string, unknown>)[name], kind.properties[name]!, `${path}.${name}`, known);
  }
}

function shown(value: unknown): string {
  return (JSON.stringify(value) ?? "nothing").slice(0, 60);
}
