/** Where Python's names of files lie in the folder that the server shows. */

/** What the server tells of its folder; both may be missing. */
export interface Root {
  /** As a path; may begin with "~". */
  serverRoot: string;
  /** As a file URI. */
  rootUri: string;
}

/**
 * Paths below the server's folder that a file may have, the likeliest first.
 *
 * @param file as Python names it
 * @param folder of the document that names it, for names that are relative
 */
export function candidates(file: string, root: Root, folder: string): string[] {
  const path = normal(file);
  const found: string[] = [];
  const add = (candidate: string | null): void => {
    const clean = candidate === null ? null : resolved(candidate);
    if (clean && !found.includes(clean)) found.push(clean);
  };
  if (!isAbsolute(path)) {
    add(`${folder}/${path}`);
    add(path);
    return found;
  }
  add(below(path, fromUri(root.rootUri)));
  const server = normal(root.serverRoot);
  if (server.startsWith("~")) add(belowHome(path, server.slice(1)));
  else add(below(path, server));
  return found;
}

function normal(path: string): string {
  const slashes = /^([a-z]:)?\\|^[a-z]:/i.test(path) ? path.replaceAll("\\", "/") : path;
  return slashes.replace(/^[A-Z]:/, (drive) => drive.toLowerCase());
}

function isAbsolute(path: string): boolean {
  return path.startsWith("/") || /^[a-z]:\//.test(path);
}

function fromUri(uri: string): string {
  if (!uri.startsWith("file://")) return "";
  let path = uri.slice("file://".length);
  try {
    path = decodeURIComponent(path);
  } catch {
    return "";
  }
  return normal(path.replace(/^\/([a-z]:)/i, "$1"));
}

function below(path: string, folder: string): string | null {
  const base = folder.replace(/\/+$/, "");
  if (folder === "" || !path.startsWith(`${base}/`)) return null;
  return path.slice(base.length + 1);
}

/** Below a folder in the home of a user whose name is not known. */
function belowHome(path: string, rest: string): string | null {
  const home = /^(\/root|\/(?:home|Users|var\/home)\/[^/]+|[a-z]:\/Users\/[^/]+)(?=\/)/.exec(path)?.[1];
  if (home !== undefined) return below(path, `${home}${rest}`);
  const inside = rest.replace(/\/+$/, "");
  const at = inside ? path.indexOf(`${inside}/`) : -1;
  return at < 0 ? null : path.slice(at + inside.length + 1);
}

function resolved(path: string): string | null {
  const parts: string[] = [];
  for (const part of path.split("/")) {
    if (part === "" || part === ".") continue;
    if (part !== "..") parts.push(part);
    else if (parts.pop() === undefined) return null;
  }
  return parts.join("/");
}
