export interface KernelVariables {
  models: ModelVariable[];
  samples: SampleVariable[];
  bench: string;
  package: string;
}

export interface ModelVariable {
  name: string;
  type: string;
  parameters: number;
}

export interface SampleVariable {
  name: string;
  expression: string;
  text: string;
  fits: string[];
}
