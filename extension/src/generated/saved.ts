export interface Chart {
  title: string;
  x_title: string;
  y_title: string;
  better: string;
  width: number;
  height: number;
  left: number;
  top: number;
  right: number;
  bottom: number;
  x_ticks: Tick[];
  y_ticks: Tick[];
  front: number[];
  points: ChartPoint[];
}

export interface ChartPoint {
  name: string;
  note: string;
  kind: "float" | "run" | "elsewhere";
  x: number;
  y: number;
  x_end: number;
  y_low: number;
  y_high: number;
  radius: number;
  label: string;
  label_x: number;
  label_y: number;
}

export interface Fact {
  name: string;
  value: string;
}

export interface SampleBox {
  left: number;
  top: number;
  width: number;
  height: number;
  text: string;
}

export interface SamplePart {
  name: string;
  modality: "image" | "audio" | "text" | "numbers";
  said: string;
  same: string;
  other: string;
  rest: string;
  picture: string;
  width: number;
  height: number;
  boxes: SampleBox[];
  sound: string;
  wave: number[];
  heard: number[];
}

export interface ShownBench {
  title: string;
  sentence: string;
  settings: Fact[];
  failures: ShownFailure[];
  assumptions: string[];
  tables: Table[];
  chart: Chart;
  code: string;
  environment: Fact[];
  samples: ShownSamples;
}

export interface ShownFailure {
  fqn: string;
  type: string;
  title: string;
  place: string;
  code: string;
  remedy: string;
  state: string;
}

export interface ShownSample {
  place: string;
  distance: string;
  inputs: SamplePart[];
  first: SamplePart[];
  second: SamplePart[];
  target: string;
}

export interface ShownSamples {
  first: string;
  second: string;
  caption: string;
  samples: ShownSample[];
}

export interface Table {
  title: string;
  columns: string[];
  rows: string[][];
  numbers: number[];
  more: number;
}

export interface Tick {
  at: number;
  text: string;
}
