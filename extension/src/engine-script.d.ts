/** The script of the engine's worker, put in by the build. */
declare module "engine-script" {
  const script: string;
  export default script;
}
