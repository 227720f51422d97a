/**
 * Bundles the front ends into src/prepbench/static, the same scripts for the JupyterLab extension into lib/assets, and
 * what draws in the pages of the documentation into docs/_static.
 */

import { mkdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const STATIC = process.argv[2] ?? here("../src/prepbench/static");
const ASSETS = process.argv[3] ?? here("lib/assets");
const SITE = process.argv[4] ?? here("../docs/_static");
const common = {
  bundle: true,
  minify: true,
  write: false,
  target: "es2022",
  legalComments: "none",
  logLevel: "warning",
  absWorkingDir: here("."),
};

async function bundle(entry, format, engine = "") {
  const inlined = {
    name: "engine",
    setup: (b) => {
      b.onResolve({ filter: /^engine-script$/ }, () => ({ path: "engine", namespace: "engine" }));
      b.onLoad({ filter: /.*/, namespace: "engine" }, () => ({ contents: engine, loader: "text" }));
    },
  };
  const result = await build({ ...common, entryPoints: [entry], format, plugins: [inlined] });
  return result.outputFiles[0].text;
}

async function styles(name) {
  const more = {
    diagram: ["generated/colours", "style/diagram"],
    bench: [
      "style/bench",
      "style/bench-steps",
      "style/bench-table",
      "style/bench-written",
      "style/bench-costs",
      "style/bench-inspector",
      "style/bench-search",
      "style/samples",
    ],
  };
  const parts = ["generated/controls", ...more[name]];
  const sheets = await Promise.all(parts.map((part) => readFile(here(`src/${part}.css`), "utf8")));
  const result = await build({
    ...common,
    stdin: { contents: sheets.join(""), loader: "css" },
    target: "chrome123",
  });
  return result.outputFiles[0].text;
}

const engine = await bundle("src/render/engine.worker.ts", "iife");
const layout = await bundle("src/render/layout.worker.ts", "iife");
const page = await bundle("src/page.ts", "iife", engine);
const template = await readFile(here("src/page.html"), "utf8");
const files = {
  "layout.js": layout,
  "page.js": page,
  "page.html": template,
  "diagram.js": await bundle("src/widget.ts", "esm", engine),
  "bench.js": await bundle("src/bench/index.ts", "esm"),
  "diagram.css": await styles("diagram"),
  "bench.css": await styles("bench"),
};
await mkdir(STATIC, { recursive: true });
for (const [name, text] of Object.entries(files)) await writeFile(`${STATIC}/${name}`, text);
await mkdir(SITE, { recursive: true });
await writeFile(`${SITE}/prepbench-site.js`, await bundle("src/site.ts", "iife", engine));
await mkdir(ASSETS, { recursive: true });
for (const [name, text] of Object.entries({
  "engine.js": engine,
  "layout.js": layout,
  "page.js": page,
  "page.html": template,
  "diagram.css": files["diagram.css"],
  "style.txt": files["diagram.css"],
}))
  await writeFile(`${ASSETS}/${name}`, text);
