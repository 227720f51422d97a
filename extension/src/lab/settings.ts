import type { ISettingRegistry } from "@jupyterlab/settingregistry";

import type { Options } from "../render";

/** What the user's settings say about all diagrams. */
export type Look = Pick<Options, "depth" | "limit" | "colours">;

const HEX = /^#([0-9a-f]{3}|[0-9a-f]{6})$/i;

/** What the user's settings say. */
export interface Settings {
  readonly look: Look;
  /** Whether outputs hold benches as they stand now. */
  readonly keepBenches: boolean;
  /** Whether a cell that shows a bench opens it beside the notebook. */
  readonly openBeside: boolean;
}

/** Applies the settings now and whenever they change. */
export async function followSettings(
  registry: ISettingRegistry,
  plugin: string,
  apply: (settings: Settings) => void,
): Promise<void> {
  const settings = await registry.load(plugin);
  const read = (): void => {
    const { composite } = settings;
    const [keepBenches, openBeside] = [composite["keepBenches"] !== false, composite["openBeside"] === true];
    apply({ look: lookOf(composite), keepBenches, openBeside });
  };
  settings.changed.connect(read);
  read();
}

/** The settings that are sound; the others keep their defaults. */
export function lookOf(values: Readonly<Record<string, unknown>>): Look {
  const { depth, limit } = values;
  return {
    depth: typeof depth === "number" ? depth : 0,
    limit: typeof limit === "number" ? limit : 300,
    colours: coloursOf(values["colours"]),
  };
}

function coloursOf(value: unknown): NonNullable<Look["colours"]> {
  const colours: NonNullable<Look["colours"]> = {};
  for (const [name, shades] of entries(value)) {
    const sound = entries(shades).filter(
      ([theme, hex]) => (theme === "light" || theme === "dark") && typeof hex === "string" && HEX.test(hex),
    );
    if (sound.length > 0) colours[name] = Object.fromEntries(sound);
  }
  return colours;
}

function entries(value: unknown): [string, unknown][] {
  return typeof value === "object" && value !== null ? Object.entries(value) : [];
}
