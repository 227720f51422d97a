/** The engine behind messages: `{id, method, args}` in, `{id, result}` or `{id, error}` out. */

import { Engine } from "./engine";

interface Request {
  id: number;
  method: string;
  args: unknown[];
}

const engine = new Engine();

self.onmessage = async (event: MessageEvent<Request>): Promise<void> => {
  const { id, method, args } = event.data;
  try {
    const call = engine[method as keyof Engine] as (...given: unknown[]) => unknown;
    self.postMessage({ id, result: await call.apply(engine, args) });
  } catch (error) {
    self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
  }
};
