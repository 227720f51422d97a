/** The page that stands alone, from its template. */

export interface PageParts {
  /** Gzipped JSON in base64. */
  document: string;
  /** The gzipped layout script in base64. */
  layout: string;
  script: string;
  style: string;
}

/** Fills the places of the template, each once. */
export function fillPage(template: string, parts: PageParts): string {
  const all: Record<string, string> = {
    ...parts,
    script: parts.script.replaceAll("</script", "<\\/script"),
    title: "prepbench",
    still: "This page shows a diagram; it needs JavaScript.",
  };
  return template.replace(/\{\{(\w+)\}\}/g, (_, name: string) => all[name] ?? "");
}
