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
