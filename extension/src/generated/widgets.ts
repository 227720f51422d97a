export interface AxisSummary {
  path: string;
  dim: number;
  sizes: number[];
  dynamic: boolean;
  symbol: string;
  problem: string;
  places: number;
}

export interface BenchSummary {
  title: string;
  subtitle: string;
  axes: AxisSummary[];
  layers: LayerSummary[];
  precisions: PrecisionChoice[];
  target: string;
  targets: string[];
  leaf_wrap: boolean;
  leaf_label: string;
  failures: number;
  code: string;
  stale: string;
  can_undo: boolean;
  can_redo: boolean;
}

export interface Card {
  kind: "" | "info" | "error";
  text: string;
  troubles: Trouble[];
  details: string;
  can_be_leaf: boolean;
}

export interface LayerSummary {
  fqn: string;
  type: string;
  parameters: number;
  precision: "int8" | "int8 weights" | "float32";
  note: string;
}

export interface MakePage {
  document: string;
}

export interface PrecisionChoice {
  name: "int8" | "int8 weights" | "float32";
  label: string;
  explanation: string;
  enabled: boolean;
}

export interface Progress {
  stage: string;
  done: number;
  total: number;
  message: string;
}

export interface RunStatus {
  running: boolean;
  progress: Progress;
  message: Card;
}

export interface SetAxis {
  path: string;
  dim: number;
  dynamic: boolean;
}

export interface SetLeafWrap {
  leaf_wrap: boolean;
}

export interface SetPrecision {
  pattern: string[];
  precision: "int8" | "int8 weights" | "float32";
}

export interface SetTarget {
  target: string;
}

export interface Trouble {
  fqn: string;
  type: string;
  reason: string;
  place: string;
  code: string;
  remedy: string;
  file: string;
  line: number;
}

export interface BenchActions {
  set_axis: SetAxis;
  set_precision: SetPrecision;
  set_target: SetTarget;
  set_leaf_wrap: SetLeafWrap;
  undo: Record<string, never>;
  redo: Record<string, never>;
  compile: Record<string, never>;
  compile_with_leaves: Record<string, never>;
  cancel: Record<string, never>;
}

export interface DiagramActions {
  layout: Record<string, never>;
  page: MakePage;
}
