import { LabIcon } from "@jupyterlab/ui-components";

const MODEL = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="currentColor">
    <path d="M8 2h8a1 1 0 0 1 1 1v4a1 1 0 0 1-1 1h-3v3h5a1 1 0 0 1 1 1v4h2a1 1 0 0 1 1 1v4a1 1 0 0 1-1 1h-6a1 1 0 0 1-1-1v-4a1 1 0 0 1 1-1h2v-3H7v3h2a1 1 0 0 1 1 1v4a1 1 0 0 1-1 1H3a1 1 0 0 1-1-1v-4a1 1 0 0 1 1-1h2v-4a1 1 0 0 1 1-1h5V8H8a1 1 0 0 1-1-1V3a1 1 0 0 1 1-1z"/>
  </g>
</svg>`;

/** A small graph of boxes; follows the theme. */
export const modelIcon = new LabIcon({ name: "prepbench:model", svgstr: MODEL });
