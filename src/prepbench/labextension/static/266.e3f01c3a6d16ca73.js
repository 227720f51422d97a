"use strict";(self.rspackChunkprepbench_lab=self.rspackChunkprepbench_lab||[]).push([[266],{"./node_modules/css-loader/dist/cjs.js!./lib/assets/diagram.css"(e,r,t){var a=t("./node_modules/css-loader/dist/runtime/noSourceMaps.js"),p=t.n(a),o=t("./node_modules/css-loader/dist/runtime/api.js"),i=(t.n(o))()(p());i.push([e.id,`.pbd,.pbb,.pbb-box,.pbl-panel{--pb-page: light-dark(#ffffff, #111111);--pb-text: light-dark(#0b1220, #f3f4f6);--pb-dim: light-dark(#56606b, #a9b1ba);--pb-card: light-dark(#f4f6f8, #2a2f36);--pb-line: light-dark(#d5dae0, #3a4048);--pb-accent: light-dark(#1f6feb, #58a6ff);--pb-button: light-dark(#1f5fa8, #1f5fa8);--pb-button-hover: light-dark(#174b87, #174b87);--pb-button-text: light-dark(#ffffff, #ffffff);--pb-error: light-dark(#b23c00, #ff8a6e);--pb-shadow: light-dark(#00000040, #00000040);--pb-leaf: light-dark(#6b0f69, #efc4ea);--pb-failed: light-dark(#e04f00, #ff5a36);--pb-change: light-dark(#0f5239, #3df0a6);--pb-hit: light-dark(#b58900, #f0e442);--pb-precision-float32: light-dark(#f4f6f8, #2a2f36);--pb-precision-float16: light-dark(#c9ddf0, #2e4f70);--pb-precision-int8: light-dark(#6faedc, #3f86bd);--pb-precision-int4: light-dark(#1f5fa8, #a9d3f5);--pb-precision-float32-text: light-dark(#0b1220, #f3f4f6);--pb-precision-float16-text: light-dark(#0b1220, #f3f4f6);--pb-precision-int8-text: light-dark(#0b1220, #0b1220);--pb-precision-int4-text: light-dark(#ffffff, #0b1220)}.pbd{--pb-page: light-dark(#ffffff, #111111);--pb-text: light-dark(#0b1220, #f3f4f6);--pb-dim: light-dark(#56606b, #a9b1ba);--pb-edge: light-dark(#8b939c, #7c848d);--pb-card: light-dark(#f4f6f8, #2a2f36);--pb-cluster: light-dark(#fafbfc, #191c20);--pb-cluster-line: light-dark(#c3cad2, #474e57);--pb-traced: light-dark(#767a80, #7c7f86);--pb-failed: light-dark(#e04f00, #ff5a36);--pb-leaf: light-dark(#6b0f69, #efc4ea);--pb-unvisited: light-dark(#767a80, #7c7f86);--pb-reused: light-dark(#008fe8, #3c94ff);--pb-change: light-dark(#0f5239, #3df0a6);--pb-hit: light-dark(#b58900, #f0e442);--pb-precision-float32: light-dark(#f4f6f8, #2a2f36);--pb-precision-float16: light-dark(#c9ddf0, #2e4f70);--pb-precision-int8: light-dark(#6faedc, #3f86bd);--pb-precision-int4: light-dark(#1f5fa8, #a9d3f5);--pb-ramp-0: light-dark(#00204d, #00204d);--pb-ramp-1: light-dark(#0a376d, #0a376d);--pb-ramp-2: light-dark(#39486b, #39486b);--pb-ramp-3: light-dark(#575d6d, #575d6d);--pb-ramp-4: light-dark(#777678, #777678);--pb-ramp-5: light-dark(#958f78, #958f78);--pb-ramp-6: light-dark(#b8a96a, #b8a96a);--pb-ramp-7: light-dark(#d9c554, #d9c554);--pb-ramp-8: light-dark(#ffe945, #ffe945);--pb-diverging-0: light-dark(#2d6aa8, #2d6aa8);--pb-diverging-1: light-dark(#5b94c6, #5b94c6);--pb-diverging-2: light-dark(#8fbadb, #8fbadb);--pb-diverging-3: light-dark(#c3d9ea, #c3d9ea);--pb-diverging-4: light-dark(#e2e2e2, #e2e2e2);--pb-diverging-5: light-dark(#f0d3b0, #f0d3b0);--pb-diverging-6: light-dark(#e5ae73, #e5ae73);--pb-diverging-7: light-dark(#cf823c, #cf823c);--pb-diverging-8: light-dark(#a95c17, #a95c17);--pb-category-0: light-dark(#b9d9f2, #1f4e79);--pb-category-1: light-dark(#f6d9a8, #7a4a06);--pb-category-2: light-dark(#c9e4c5, #24582b);--pb-category-3: light-dark(#e9c7e6, #6b2f68);--pb-category-4: light-dark(#d5d0f2, #443b87);--pb-category-5: light-dark(#f2c4bd, #7c2f25);--pb-precision-float32-text: light-dark(#0b1220, #f3f4f6);--pb-precision-float16-text: light-dark(#0b1220, #f3f4f6);--pb-precision-int8-text: light-dark(#0b1220, #0b1220);--pb-precision-int4-text: light-dark(#ffffff, #0b1220);--pb-ramp-0-text: light-dark(#ffffff, #ffffff);--pb-ramp-1-text: light-dark(#ffffff, #ffffff);--pb-ramp-2-text: light-dark(#ffffff, #ffffff);--pb-ramp-3-text: light-dark(#ffffff, #ffffff);--pb-ramp-4-text: light-dark(#ffffff, #ffffff);--pb-ramp-5-text: light-dark(#0b1220, #0b1220);--pb-ramp-6-text: light-dark(#0b1220, #0b1220);--pb-ramp-7-text: light-dark(#0b1220, #0b1220);--pb-ramp-8-text: light-dark(#0b1220, #0b1220);--pb-diverging-0-text: light-dark(#ffffff, #ffffff);--pb-diverging-1-text: light-dark(#0b1220, #0b1220);--pb-diverging-2-text: light-dark(#0b1220, #0b1220);--pb-diverging-3-text: light-dark(#0b1220, #0b1220);--pb-diverging-4-text: light-dark(#0b1220, #0b1220);--pb-diverging-5-text: light-dark(#0b1220, #0b1220);--pb-diverging-6-text: light-dark(#0b1220, #0b1220);--pb-diverging-7-text: light-dark(#0b1220, #0b1220);--pb-diverging-8-text: light-dark(#ffffff, #ffffff);--pb-category-0-text: light-dark(#0b1220, #f3f4f6);--pb-category-1-text: light-dark(#0b1220, #f3f4f6);--pb-category-2-text: light-dark(#0b1220, #f3f4f6);--pb-category-3-text: light-dark(#0b1220, #f3f4f6);--pb-category-4-text: light-dark(#0b1220, #f3f4f6);--pb-category-5-text: light-dark(#0b1220, #f3f4f6)}.pbd-host{flex:1 1 auto;min-width:min(320px,100%)}.pbd-lost,.pbd-newer{margin:0 0 4px;padding:6px 12px;border-inline-start:3px solid var(--pb-error);font:13px / 1.45 var(--jp-ui-font-family, system-ui, "DejaVu Sans", sans-serif);color:var(--jp-ui-font-color1, var(--pb-text))}.pbd-newer{border-inline-start-color:var(--pb-accent)}.pbd-lost:empty,.pbd-newer:empty,.pbb-box .pbd-newer,.pbb-box .pbd-lost,.pbd-host.jupyter-widgets-disconnected:before{display:none}.pbd{position:relative;color-scheme:light dark;--pbd-accent: var(--jp-brand-color1, var(--pb-accent));display:flex;box-sizing:border-box;width:100%;height:100%;min-height:380px;min-width:0;overflow:hidden;color:var(--pb-text);background:var(--pb-page);border:1px solid var(--pb-line);border-radius:8px;font:13px / 1.45 var(--jp-ui-font-family, system-ui, "DejaVu Sans", sans-serif)}body[data-jp-theme-light=false] .pbd,body.vscode-dark .pbd,[data-vscode-theme-kind=vscode-dark] .pbd,html[theme=dark] .pbd{color-scheme:dark}body[data-jp-theme-light=true] .pbd,body.vscode-light .pbd,[data-vscode-theme-kind=vscode-light] .pbd,html[theme=light] .pbd{color-scheme:light}.pbd *,.pbd *:before{box-sizing:border-box}.pbd [hidden]{display:none!important}.pbd-note{margin:14px 16px;overflow-wrap:anywhere}.pbd-pane{flex:1 1 0;min-width:0;display:flex;flex-direction:column;position:relative;container:pane / inline-size}.pbd .pbd-before{position:absolute;inset:0;z-index:1;background:var(--pb-page)}.pbd-pair .pbd-pane+.pbd-pane{border-left:1px solid var(--pb-line)}.pbd-bar,.pbd-legend,.pbd-crumbs{display:flex;gap:6px;align-items:center;padding:6px 10px;flex-wrap:wrap}.pbd-bar,.pbd-crumbs{border-bottom:1px solid var(--pb-line)}.pbd-legend{border-top:1px solid var(--pb-line)}.pbd-legend:empty{display:none}.pbd-crumbs{gap:4px;padding:4px 10px}.pbd-grow{flex:1}.pbd-dim{color:var(--pb-dim)}.pbd-count,.pbd-status{color:var(--pb-dim);font-size:12px;white-space:nowrap}.pbd button,.pbd select,.pbd input,.pbd summary{font:inherit;color:inherit;background:var(--pb-page);border:1px solid var(--pb-line);border-radius:6px;padding:1px 8px;margin:0;min-height:24px}.pbd button,.pbd summary{cursor:pointer}.pbd button:hover:not(:disabled),.pbd summary:hover{background:var(--pb-card)}.pbd button:disabled{opacity:.6;cursor:default}.pbd-icon{min-width:26px;padding:1px 5px!important;text-align:center}.pbd input[type=search]{width:170px}.pbd select{max-width:150px}.pbd :is(button,input,select,summary,.pbd-canvas):focus-visible{outline:2px solid var(--pbd-accent);outline-offset:-1px}.pbd .pbd-levels button[aria-pressed=true]:not(:disabled){background:var(--pb-text);color:var(--pb-page)}.pbd-levels button+button{margin-left:4px}.pbd-link{border:0!important;background:none!important;padding:0 2px!important;min-height:0!important;text-align:left;text-decoration:underline;text-underline-offset:2px;overflow-wrap:anywhere}.pbd-menu{position:relative}.pbd-menu summary{list-style:none;min-width:26px;text-align:center;padding:1px 5px}.pbd-menu summary::-webkit-details-marker{display:none}.pbd-menu-list{position:absolute;right:0;top:110%;z-index:5;display:flex;flex-direction:column;gap:4px;padding:6px;background:var(--pb-page);border:1px solid var(--pb-line);border-radius:6px;box-shadow:0 4px 16px var(--pb-shadow);white-space:nowrap}.pbd-body{display:flex;flex:1;min-height:0}.pbd-frame{position:relative;flex:1;min-width:0;min-height:0;display:flex}.pbd-canvas{flex:1;overflow:auto;padding:8px;cursor:grab;min-width:0;outline-offset:-3px!important}.pbd-canvas.pbd-dragged{cursor:grabbing}.pbd-canvas>svg{display:block;margin:0 auto;user-select:none}.pbd-canvas>svg title{display:none}.pbd-canvas g.node,.pbd-canvas g.cluster{cursor:pointer}.pbd-canvas .pbd-faded{opacity:.22}.pbd-canvas .pbd-hit text{text-decoration:underline 2.5px var(--pb-hit);text-underline-offset:2px}.pbd-handle rect{fill:var(--pb-page);stroke:var(--pb-traced);stroke-width:.8}.pbd-ring{fill:none;stroke:var(--pbd-accent);stroke-width:2.5;pointer-events:none}.pbd-canvas:not(:focus) .pbd-handle rect{fill:var(--pb-page);stroke:var(--pb-traced);stroke-width:.8}.pbd-handle path{stroke:var(--pb-text)!important;stroke-width:1.2;fill:none!important}.pbd-canvas g:hover>.pbd-handle rect{stroke:var(--pbd-accent);stroke-width:1.6}.pbd-ring{stroke-dasharray:5 3}.pbd-canvas .edge.pbd-in path,.pbd-canvas .edge.pbd-out path{stroke:var(--pbd-accent)!important;stroke-width:2.2}.pbd-canvas .edge.pbd-in polygon,.pbd-canvas .edge.pbd-out polygon{stroke:var(--pbd-accent)!important;fill:var(--pbd-accent)!important}.pbd-canvas .edge.pbd-in path{stroke-dasharray:6 3}.pbd-map{position:absolute;right:14px;bottom:14px;background:color-mix(in srgb,var(--pb-page) 88%,transparent);border:1px solid var(--pb-line);border-radius:6px;cursor:crosshair;touch-action:none}.pbd-map-box{fill:var(--pb-traced);opacity:.65}.pbd-map-failed{fill:var(--pb-failed);opacity:1}.pbd-map-leaf{fill:var(--pb-leaf);opacity:1}.pbd-map-cluster{fill:var(--pb-cluster-line);opacity:.35}.pbd-map-view{fill:none;stroke:var(--pbd-accent);stroke-width:2}.pbd-message{position:absolute;top:12px;left:12px;right:12px;max-width:460px;margin:0 auto;padding:10px 14px;z-index:4;background:var(--pb-page);border:1px solid var(--pb-line);border-radius:8px;box-shadow:0 4px 16px var(--pb-shadow);overflow-wrap:anywhere}.pbd-message p{margin:0 0 8px}.pbd-actions{display:flex;gap:6px;flex-wrap:wrap;margin:6px 0}.pbd-side{width:252px;flex:none;border-left:1px solid var(--pb-line);padding:8px 12px;overflow:auto;font-size:12.5px;overflow-wrap:anywhere}.pbd-side h4,.pbd-help h4{margin:0 0 6px;font-size:13.5px;color:inherit;font-weight:600}.pbd-side p{margin:0 0 8px}.pbd-side dl,.pbd-help dl{margin:0 0 8px;display:grid;grid-template-columns:max-content minmax(0,1fr);align-items:start;gap:2px 10px}.pbd :is(.pbd-side,.pbd-help) :is(dl,dt,dd){float:none;width:auto;overflow:visible;padding:0}.pbd :is(.pbd-side,.pbd-help) :is(dt,dd){margin:0;font-weight:400}.pbd .pbd-side dt{color:var(--pb-dim);overflow-wrap:normal}.pbd .pbd-side dd{min-width:0}.pbd-side ul{list-style:none;margin:0 0 8px;padding:0}.pbd-list li{margin:2px 0}.pbd-title{display:flex;gap:8px;align-items:flex-start;justify-content:space-between}.pbd .pbd-code{background:var(--pb-card)!important;color:inherit;border-radius:6px;padding:6px 8px!important;margin:4px 0 8px;white-space:pre;word-break:normal;overflow-wrap:normal;overflow-x:auto;font:11.5px / 1.5 var(--jp-code-font-family, ui-monospace, monospace)}.pbd-reason{border-left:3px solid var(--pb-failed);padding-left:8px}.pbd-reason small{display:block;color:var(--pb-dim)}.pbd-trouble{display:grid;gap:1px;width:100%;text-align:left;margin:0 0 6px!important;padding:4px 8px!important;border-left-width:3px!important;overflow-wrap:anywhere}.pbd-trouble-name{font-weight:600}.pbd .pbd-is-failed{border-left:3px solid var(--pb-failed)}.pbd .pbd-is-leaf{border-left:3px solid var(--pb-leaf)}.pbd .pbd-is-reused{border-left:3px double var(--pb-reused)}.pbd .pbd-is-unvisited{border-left:3px dashed var(--pb-unvisited)}.pbd :is(.pbd-is-added,.pbd-is-changed,.pbd-is-removed){border-left:3px solid var(--pb-change)}.pbd-key[aria-pressed=true]{background:var(--pb-text)!important;color:var(--pb-page)}.pbd-sizes{display:flex;gap:2px 12px;flex-wrap:wrap;max-height:3.2em;overflow:auto;color:var(--pb-dim)}.pbd-size b{color:var(--pb-text);font-weight:600}.pbd-scale{display:flex;gap:4px;align-items:center;flex-wrap:wrap;margin-left:8px;font-size:12px}.pbd-swatch{display:inline-flex;gap:4px;align-items:center}.pbd-swatch i{width:16px;height:12px;border:1px solid var(--pb-line);display:inline-block}.pbd-help{position:absolute;inset:10px;max-width:560px;margin:0 auto;padding:12px 16px;overflow:auto;z-index:6;background:var(--pb-page);border:1px solid var(--pb-line);border-radius:8px;box-shadow:0 4px 24px var(--pb-shadow)}.pbd kbd{font:12px var(--jp-code-font-family, monospace);background:var(--pb-card);color:inherit;border:1px solid var(--pb-line);border-radius:4px;padding:0 4px;box-shadow:none;white-space:nowrap}@container pane (max-width: 680px){.pbd-wide,.pbd-quiet,.pbd-levels>.pbd-dim{display:none}.pbd-pair .pbd-levels>.pbd-dim{display:inline}.pbd-side{width:186px}.pbd-bar input[type=search]{width:118px}.pbd-bar select{max-width:110px}}@container pane (max-width: 560px){.pbd-body{flex-direction:column}.pbd-side{width:auto;max-height:34%;border-left:0;border-top:1px solid var(--pb-line)}}@media(max-width:620px){.pbd-pair{flex-direction:column}}@media(prefers-reduced-motion:reduce){.pbd *{transition:none!important;animation:none!important;scroll-behavior:auto!important}}.pbd-canvas g.pbd-preview>:is(path,polygon,polyline,ellipse){stroke:var(--pbd-accent);stroke-width:2.5px}
`,""]),t.d(r,{},{A:i})},"./node_modules/css-loader/dist/cjs.js!./src/style/samples.css"(e,r,t){var a=t("./node_modules/css-loader/dist/runtime/noSourceMaps.js"),p=t.n(a),o=t("./node_modules/css-loader/dist/runtime/api.js"),i=(t.n(o))()(p());i.push([e.id,`/* Samples on which two runs differ, in the bench and in saved benches. */
.pbs {
  --pbs-dim: var(--pbb-dim, var(--jp-ui-font-color2, GrayText));
  --pbs-line: var(--pbb-line, var(--jp-border-color2, GrayText));
  display: flex;
  flex-direction: column;
  gap: 10px;
}
.pbs p {
  margin: 0;
}
.pbs-dim,
.pbs-name {
  color: var(--pbs-dim);
}
.pbs-sample {
  border-top: 1px solid var(--pbs-line);
  padding-top: 8px;
}
.pbs-head {
  display: flex;
  flex-wrap: wrap;
  gap: 4px 12px;
  margin-bottom: 6px;
}
.pbs-sides {
  display: grid;
  grid-template-columns: repeat(3, minmax(0, 1fr));
  gap: 12px;
}
.pbs-side {
  display: flex;
  flex-direction: column;
  gap: 6px;
  min-width: 0;
}
.pbs-name {
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}
.pbs-part > small {
  display: block;
  overflow-wrap: anywhere;
}
.pbs-frame {
  position: relative;
  width: min(100%, 200px);
}
.pbs-frame > img {
  display: block;
  width: 100%;
  height: 100%;
  object-fit: fill;
  image-rendering: pixelated;
  outline: 1px solid var(--pbs-line);
}
.pbs-frame > svg {
  position: absolute;
  inset: 0;
  width: 100%;
  height: 100%;
}
.pbs-frame rect {
  fill: none;
  stroke: var(--pb-failed, orangered);
  stroke-width: 2;
  vector-effect: non-scaling-stroke;
  pointer-events: all;
}
.pbs-label {
  position: absolute;
  max-width: 100%;
  padding: 0 3px;
  overflow: hidden;
  border-left: 2px solid var(--pb-failed, orangered);
  background: var(--jp-layout-color1, Canvas);
  color: var(--jp-ui-font-color1, CanvasText);
  font-size: 11px;
  line-height: 15px;
  text-overflow: ellipsis;
  white-space: nowrap;
}
.pbs-wave {
  display: block;
  width: 100%;
  height: 44px;
}
.pbs-wave > path {
  fill: color-mix(in srgb, currentColor 45%, transparent);
  stroke: currentColor;
  stroke-width: 0.5;
}
.pbs-wave > rect {
  fill: color-mix(in srgb, var(--pb-error, currentColor) 18%, transparent);
}
.pbs-wave > line {
  stroke: var(--pb-error, currentColor);
  stroke-width: 2;
  vector-effect: non-scaling-stroke;
}
.pbs audio {
  display: block;
  width: 100%;
  height: 32px;
  margin-top: 4px;
}
.pbs-said,
.pbs-numbers {
  overflow-wrap: anywhere;
  white-space: pre-wrap;
}
.pbs-said {
  max-height: 12em;
  overflow: auto;
}
.pbs mark {
  padding: 0 1px;
  border-bottom: 2px solid var(--pb-error, currentColor);
  border-radius: 2px;
  background: color-mix(in srgb, var(--pb-error, currentColor) 22%, transparent);
  color: inherit;
}
@container (max-width: 560px) {
  .pbs-sides {
    grid-template-columns: repeat(2, minmax(0, 1fr));
  }
  .pbs-side:first-child {
    grid-column: 1 / -1;
  }
}
`,""]),t.d(r,{},{A:i})},"./node_modules/css-loader/dist/cjs.js!./style/base.css"(e,r,t){var a=t("./node_modules/css-loader/dist/runtime/noSourceMaps.js"),p=t.n(a),o=t("./node_modules/css-loader/dist/runtime/api.js"),i=(t.n(o))()(p());i.push([e.id,`.pbl-output {
  height: 560px;
  min-height: 160px;
  overflow: hidden;
  resize: vertical;
}

.pbl-diagram-output[hidden],
.pbl-diagram-note[hidden] {
  display: none;
}

.pbl-diagram-note {
  margin: 0 0 4px;
  color: var(--jp-ui-font-color2);
}

.pbl-document {
  overflow: hidden;
  background: var(--jp-layout-color0);
}

.pbl-output > *,
.pbl-document > * {
  width: 100%;
  height: 100%;
}

.pbl-panel {
  color-scheme: light;
  display: flex;
  flex-direction: column;
  gap: 6px;
  padding: 8px 0 0;
  overflow: hidden;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

[data-jp-theme-light="false"] .pbl-panel {
  color-scheme: dark;
}

.pbl-panel [hidden] {
  display: none;
}

.pbl-choice,
.pbl-filter {
  flex: none;
  margin: 0 8px;
  padding: 3px 6px;
  border: 1px solid var(--jp-border-color1);
  border-radius: var(--jp-border-radius);
  background: var(--jp-input-background);
  color: inherit;
  font: inherit;
}

.pbl-choice:focus-visible,
.pbl-filter:focus-visible,
.pbl-tree:focus-visible,
.pbl-link:focus-visible,
:is(.pbl-failures, .pbl-runs) summary:focus-visible {
  outline: 2px solid var(--jp-brand-color1);
  outline-offset: -1px;
}

.pbl-nothing {
  margin: 8px 12px;
  color: var(--jp-ui-font-color2);
}

.pbl-failures-place {
  flex: none;
  max-height: 45%;
  overflow-y: auto;
  border-bottom: 1px solid var(--jp-border-color2);
}

.pbl-failures-place:empty {
  display: none;
}

:is(.pbl-failures, .pbl-runs) summary {
  padding: 2px 8px;
  font-weight: 600;
  cursor: pointer;
}

:is(.pbl-failures, .pbl-runs) ul {
  margin: 0;
  padding: 0;
  list-style: none;
}

.pbl-failures-place:has(.pbl-runs) {
  max-height: 30%;
}

.pbl-runs > .pbl-type {
  padding: 2px 12px;
}

.pbl-run-head {
  display: flex;
  justify-content: space-between;
  gap: 8px;
}

.pbl-run [aria-current] {
  font-weight: 600;
}

:is(.pbl-failure, .pbl-run) {
  padding: 4px 8px 6px 12px;
  line-height: 1.4;
  overflow-wrap: anywhere;
}

.pbl-failure .pbl-glyph,
.pbl-failed .pbl-glyph,
.pbl-count {
  color: var(--pb-error);
}

.pbl-leaf .pbl-glyph {
  color: var(--pb-leaf);
}

.pbl-reason,
.pbl-remedy,
.pbl-place {
  padding-inline-start: 18px;
}

.pbl-remedy,
.pbl-type {
  color: var(--jp-ui-font-color2);
}

.pbl-place code {
  display: block;
  overflow: hidden;
  background: none;
  color: inherit;
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
  text-overflow: ellipsis;
  white-space: nowrap;
}

.pbl-link {
  padding: 0;
  border: 0;
  background: none;
  color: var(--jp-content-link-color);
  font: inherit;
  text-align: start;
  cursor: pointer;
}

.pbl-link:hover {
  text-decoration: underline;
}

.pbl-failure-name {
  margin-inline-end: 6px;
  font-weight: 600;
}

.pbl-tree {
  flex: 1 1 0;
  min-height: 96px;
  overflow: auto;
}

.pbl-rows {
  position: relative;
  overflow: hidden;
}

.pbl-row {
  position: absolute;
  right: 0;
  left: 0;
  display: flex;
  gap: 4px;
  align-items: center;
  box-sizing: border-box;
  height: 24px;
  padding-inline-end: 8px;
  white-space: nowrap;
  cursor: pointer;
}

.pbl-row:hover {
  background: var(--jp-layout-color2);
}

.pbl-row[aria-selected="true"] {
  background: var(--jp-layout-color3);
  box-shadow: inset 3px 0 0 var(--jp-brand-color1);
}

.pbl-tree:focus-visible .pbl-active {
  outline: 1px solid var(--jp-brand-color1);
  outline-offset: -1px;
}

.pbl-twisty,
.pbl-glyph {
  display: inline-block;
  flex: none;
  width: 14px;
  text-align: center;
}

.pbl-name {
  flex: 0 0 auto;
}

.pbl-row .pbl-type {
  flex: 0 1 auto;
  overflow: hidden;
  text-overflow: ellipsis;
}

.pbl-unvisited .pbl-name {
  color: var(--jp-ui-font-color2);
  font-style: italic;
}

.pbl-count {
  flex: none;
  margin-inline-start: auto;
  font-variant-numeric: tabular-nums;
}

/* as wide as its notebook: of what is wider, only tables scroll */
.pbl-bench-output {
  min-width: 0;
  overflow: visible;
}

.pbl-document.pbl-bench-file {
  overflow: auto;
}

.pbl-document > .pbl-bench {
  height: auto;
}

.pbl-bench {
  --pbl-bench-accent: var(--jp-brand-color1);
  box-sizing: border-box;
  max-width: 1180px;
  padding: 12px 20px 32px;
  color: var(--jp-ui-font-color1);
  font: var(--jp-ui-font-size1) / 1.5 var(--jp-ui-font-family);
}

.pbl-bench-output .pbl-bench {
  padding: 4px 0 12px;
}

.pbl-bench[hidden] {
  display: none;
}

.pbl-bench h1 {
  margin: 0;
  font-size: 1.4em;
}

.pbl-bench h2 {
  margin: 1.4em 0 0.4em;
  font-size: 1.1em;
}

.pbl-bench header p {
  margin: 2px 0;
}

.pbl-bench-note {
  color: var(--jp-ui-font-color2);
}

.pbl-bench-error {
  margin: 14px 0;
  overflow-wrap: anywhere;
}

.pbl-bench button {
  margin: 6px 0;
  padding: 3px 12px;
  border: 1px solid var(--jp-border-color1);
  border-radius: 4px;
  background: var(--jp-layout-color1);
  color: inherit;
  font: inherit;
  cursor: pointer;
}

.pbl-bench :is(button, .pbl-bench-table):focus-visible {
  outline: 2px solid var(--pbl-bench-accent);
}

.pbl-bench-diagram {
  height: 520px;
  min-height: 160px;
  margin: 10px 0;
  overflow: hidden;
  resize: vertical;
}

.pbl-bench-diagram > * {
  width: 100%;
  height: 100%;
}

.pbl-bench dl {
  display: grid;
  grid-template-columns: max-content 1fr;
  gap: 2px 16px;
  margin: 0;
}

.pbl-bench dd {
  margin: 0;
  overflow-wrap: anywhere;
}

.pbl-bench-table {
  max-height: 480px;
  overflow: auto;
}

.pbl-bench table {
  border-collapse: collapse;
}

.pbl-bench :is(th, td) {
  padding: 3px 12px 3px 0;
  border-bottom: 1px solid var(--jp-border-color2);
  text-align: left;
  vertical-align: top;
  overflow-wrap: anywhere;
}

.pbl-bench th {
  position: sticky;
  top: 0;
  background: var(--jp-layout-color0);
}

.pbl-bench .pbl-bench-number {
  text-align: right;
  white-space: nowrap;
  font-variant-numeric: tabular-nums;
}

.pbl-bench pre {
  margin: 4px 0;
  padding: 8px;
  overflow-x: auto;
  border: 1px solid var(--jp-border-color2);
  background: var(--jp-layout-color1);
  font: var(--jp-code-font-size) / 1.4 var(--jp-code-font-family);
}

.pbl-bench-chart {
  display: block;
  width: 100%;
  max-width: 720px;
  height: auto;
}

.pbl-bench-chart text {
  font: 12px var(--jp-ui-font-family);
  fill: var(--jp-ui-font-color1);
}

.pbl-bench-chart .dim {
  fill: var(--jp-ui-font-color2);
}

.pbl-bench-chart :is(.grid, .whisker, .front) {
  fill: none;
  stroke: var(--jp-border-color2);
}

.pbl-bench-chart .whisker {
  stroke: var(--jp-ui-font-color2);
}

.pbl-bench-chart .front {
  stroke: var(--pbl-bench-accent);
  stroke-width: 1.5;
  stroke-dasharray: 5 4;
}

.pbl-bench-chart .mark {
  fill: var(--jp-ui-font-color2);
}

.pbl-bench-chart .run circle {
  fill: var(--pbl-bench-accent);
  fill-opacity: 0.75;
}

.pbl-bench-chart .elsewhere circle {
  fill: none;
  stroke: var(--pbl-bench-accent);
  stroke-width: 1.5;
}

/* beside the notebook: the bench alone, without what else its cell printed */
.pbl-beside {
  overflow: auto;
  outline: 0;
  padding: 8px;
  background: var(--jp-layout-color0);
}

.pbl-beside .jp-OutputArea-child:not(:has(.pbl-bench-output)),
.pbl-beside .jp-OutputPrompt,
.pbl-beside .pbb-beside,
.pbl-beside:has(.pbl-bench-output) .pbl-beside-note {
  display: none;
}

.pbl-beside-note {
  margin: 24px;
  color: var(--jp-ui-font-color2);
  font: var(--jp-ui-font-size1) / 1.5 var(--jp-ui-font-family);
}

/* the dialog that makes a bench */
.pbl-prepare {
  min-width: min(560px, 80vw);
}

.pbl-prepare label {
  display: block;
  margin-bottom: 10px;
  color: var(--jp-ui-font-color1);
}

.pbl-prepare select {
  display: block;
  width: 100%;
  height: 30px;
  margin-top: 4px;
  padding: 0 6px;
  border: 1px solid var(--jp-border-color1);
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font: inherit;
}

.pbl-prepare-code {
  margin: 8px 0 0;
  padding: 8px 10px;
  overflow: auto;
  border: 1px solid var(--jp-border-color2);
  background: var(--jp-cell-editor-background);
  color: var(--jp-ui-font-color1);
  font: var(--jp-code-font-size) / 1.5 var(--jp-code-font-family);
}

.prepbench-error .prepbench-repair {
  display: inline-block !important;
  margin: 4px 0;
  padding: 4px 10px;
  border: 1px solid var(--jp-brand-color1);
  border-radius: 2px;
  background: var(--jp-layout-color1);
  color: var(--jp-content-link-color, var(--jp-brand-color1));
  font: inherit;
  cursor: pointer;
}

.prepbench-error .prepbench-repair:focus-visible {
  outline: 2px solid var(--jp-brand-color1);
  outline-offset: 1px;
}

/* plotly knows no theme: what has the grey of our charts, and no other chart's, is drawn in the colour of text */
.js-plotly-plot .main-svg text[style*="121, 121, 122"],
.js-plotly-plot .main-svg tspan[style*="121, 121, 122"] {
  fill: var(--jp-content-font-color1) !important;
}
`,""]),t.d(r,{},{A:i})},"./node_modules/css-loader/dist/cjs.js!./style/index.css"(e,r,t){var a=t("./node_modules/css-loader/dist/runtime/noSourceMaps.js"),p=t.n(a),o=t("./node_modules/css-loader/dist/runtime/api.js"),i=t.n(o),d=t("./node_modules/css-loader/dist/cjs.js!./lib/assets/diagram.css"),n=t("./node_modules/css-loader/dist/cjs.js!./src/style/samples.css"),l=t("./node_modules/css-loader/dist/cjs.js!./style/base.css"),b=i()(p());b.i(d.A),b.i(n.A),b.i(l.A),b.push([e.id,`
`,""]),t.d(r,{},{A:b})},"./node_modules/css-loader/dist/runtime/api.js"(e){e.exports=function(e){var r=[];return r.toString=function(){return this.map(function(r){var t="",a=void 0!==r[5];return r[4]&&(t+="@supports (".concat(r[4],") {")),r[2]&&(t+="@media ".concat(r[2]," {")),a&&(t+="@layer".concat(r[5].length>0?" ".concat(r[5]):""," {")),t+=e(r),a&&(t+="}"),r[2]&&(t+="}"),r[4]&&(t+="}"),t}).join("")},r.i=function(e,t,a,p,o){"string"==typeof e&&(e=[[null,e,void 0]]);var i={};if(a)for(var d=0;d<this.length;d++){var n=this[d][0];null!=n&&(i[n]=!0)}for(var l=0;l<e.length;l++){var b=[].concat(e[l]);a&&i[b[0]]||(void 0!==o&&(void 0===b[5]||(b[1]="@layer".concat(b[5].length>0?" ".concat(b[5]):""," {").concat(b[1],"}")),b[5]=o),t&&(b[2]&&(b[1]="@media ".concat(b[2]," {").concat(b[1],"}")),b[2]=t),p&&(b[4]?(b[1]="@supports (".concat(b[4],") {").concat(b[1],"}"),b[4]=p):b[4]="".concat(p)),r.push(b))}},r}},"./node_modules/css-loader/dist/runtime/noSourceMaps.js"(e){e.exports=function(e){return e[1]}},"./style/index.css"(e,r,t){t.r(r);var a=t("./node_modules/style-loader/dist/runtime/injectStylesIntoStyleTag.js"),p=t.n(a),o=t("./node_modules/style-loader/dist/runtime/styleDomAPI.js"),i=t.n(o),d=t("./node_modules/style-loader/dist/runtime/insertBySelector.js"),n=t.n(d),l=t("./node_modules/style-loader/dist/runtime/setAttributesWithoutAttributes.js"),b=t.n(l),s=t("./node_modules/style-loader/dist/runtime/insertStyleElement.js"),c=t.n(s),f=t("./node_modules/style-loader/dist/runtime/styleTagTransform.js"),h=t.n(f),u=t("./node_modules/css-loader/dist/cjs.js!./style/index.css"),g={};g.styleTagTransform=h(),g.setAttributes=b(),g.insert=n().bind(null,"head"),g.domAPI=i(),g.insertStyleElement=c(),p()(u.A,g);let x=u.A&&u.A.locals?u.A.locals:void 0;t.d(r,{},{default:x})},"./node_modules/style-loader/dist/runtime/injectStylesIntoStyleTag.js"(e){var r=[];function t(e){for(var t=-1,a=0;a<r.length;a++)if(r[a].identifier===e){t=a;break}return t}function a(e,a){for(var p={},o=[],i=0;i<e.length;i++){var d=e[i],n=a.base?d[0]+a.base:d[0],l=p[n]||0,b="".concat(n," ").concat(l);p[n]=l+1;var s=t(b),c={css:d[1],media:d[2],sourceMap:d[3],supports:d[4],layer:d[5]};if(-1!==s)r[s].references++,r[s].updater(c);else{var f=function(e,r){var t=r.domAPI(r);return t.update(e),function(r){r?(r.css!==e.css||r.media!==e.media||r.sourceMap!==e.sourceMap||r.supports!==e.supports||r.layer!==e.layer)&&t.update(e=r):t.remove()}}(c,a);a.byIndex=i,r.splice(i,0,{identifier:b,updater:f,references:1})}o.push(b)}return o}e.exports=function(e,p){var o=a(e=e||[],p=p||{});return function(e){e=e||[];for(var i=0;i<o.length;i++){var d=t(o[i]);r[d].references--}for(var n=a(e,p),l=0;l<o.length;l++){var b=t(o[l]);0===r[b].references&&(r[b].updater(),r.splice(b,1))}o=n}}},"./node_modules/style-loader/dist/runtime/insertBySelector.js"(e){var r={};e.exports=function(e,t){var a=function(e){if(void 0===r[e]){var t=document.querySelector(e);if(window.HTMLIFrameElement&&t instanceof window.HTMLIFrameElement)try{t=t.contentDocument.head}catch(e){t=null}r[e]=t}return r[e]}(e);if(!a)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");a.appendChild(t)}},"./node_modules/style-loader/dist/runtime/insertStyleElement.js"(e){e.exports=function(e){var r=document.createElement("style");return e.setAttributes(r,e.attributes),e.insert(r,e.options),r}},"./node_modules/style-loader/dist/runtime/setAttributesWithoutAttributes.js"(e,r,t){e.exports=function(e){var r=t.nc;r&&e.setAttribute("nonce",r)}},"./node_modules/style-loader/dist/runtime/styleDomAPI.js"(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var r=e.insertStyleElement(e);return{update:function(t){var a,p,o;a="",t.supports&&(a+="@supports (".concat(t.supports,") {")),t.media&&(a+="@media ".concat(t.media," {")),(p=void 0!==t.layer)&&(a+="@layer".concat(t.layer.length>0?" ".concat(t.layer):""," {")),a+=t.css,p&&(a+="}"),t.media&&(a+="}"),t.supports&&(a+="}"),(o=t.sourceMap)&&"u">typeof btoa&&(a+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(o))))," */")),e.styleTagTransform(a,r,e.options)},remove:function(){var e;null===(e=r).parentNode||e.parentNode.removeChild(e)}}}},"./node_modules/style-loader/dist/runtime/styleTagTransform.js"(e){e.exports=function(e,r){if(r.styleSheet)r.styleSheet.cssText=e;else{for(;r.firstChild;)r.removeChild(r.firstChild);r.appendChild(document.createTextNode(e))}}}}]);