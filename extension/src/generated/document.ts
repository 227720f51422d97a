export interface CodeFrame {
  file: string;
  line: number;
  text: string;
}

export interface DiagramDocument {
  documents: GraphCollectionDocument[];
  titles: string[];
  arrangement: "levels" | "compare";
  overlays: Overlay[];
  overlay: string;
  marks: Mark[];
  version: string;
}

export interface Failure {
  fqn: string;
  module_type: string;
  kind: string;
  exception_type: string;
  message: string;
  source: SourceLine | null;
  remedy: string;
  frame: string;
}

export interface Finding {
  fqn: string;
  module_type: string;
  kind: string;
  message: string;
  source: SourceLine | null;
  frame: string;
  remedy: string;
}

export interface Graph {
  id: string;
  fqn: string;
  nodes: Node[];
}

export interface GraphCollectionDocument {
  model_type: string;
  level: "module" | "aten";
  graphs: Graph[];
  modules: Module[];
  failures: Failure[];
  findings: Finding[];
  groups: Group[];
  frames: CodeFrame[];
  sizes: Size[];
  version: string;
}

export interface Group {
  id: string;
  parent: string | null;
  fqn: string;
  call: number;
  alike: number;
  label: string;
}

export interface Mark {
  document: number;
  id: string;
  change: "added" | "removed" | "changed";
  note: string;
}

export interface Module {
  fqn: string;
  type: string;
  status: "traced" | "failed" | "leaf" | "unvisited";
  parameters: number;
  calls: number;
  failure: Failure | null;
}

export interface Node {
  id: string;
  op: "placeholder" | "get_attr" | "call_module" | "call_function" | "call_method" | "output";
  label: string;
  target: string;
  fqn: string;
  type: string;
  status: "traced" | "failed" | "leaf" | "unvisited";
  shapes: string[];
  dtypes: string[];
  inputs: string[];
  source: SourceLine | null;
  group: string | null;
  call: number;
}

export interface Overlay {
  name: string;
  kind: "number" | "category" | "precision";
  unit: string;
  combine: "sum" | "mean" | "max" | "min";
  diverging: boolean;
  values: OverlayValue[];
}

export interface OverlayValue {
  fqn: string;
  number: number | null;
  text: string;
}

export interface Size {
  name: string;
  meaning: string;
}

export interface SourceLine {
  file: string;
  line: number;
  code: string;
}
