/** Workers from script texts, for places that have no files to serve. */

/** A worker that runs the given script. */
export function workerOf(script: string): Worker {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  try {
    return new Worker(url);
  } finally {
    setTimeout(() => URL.revokeObjectURL(url), 30_000);
  }
}

/** The text of gzipped data. */
export function unzipped(data: Uint8Array): Promise<string> {
  return new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
}

/** Gzipped text in base64. */
export async function packed(text: string): Promise<string> {
  const data = await new Response(new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer();
  const bytes = new Uint8Array(data);
  let binary = "";
  for (let i = 0; i < bytes.length; i += 0x8000) binary += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(binary);
}
