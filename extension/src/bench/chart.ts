/** Clicks on points of the chart, which Python draws with plotly: a point's run becomes the current choices. */

interface Plot extends HTMLElement {
  on?(event: "plotly_click", heard: (event: { points?: { customdata?: unknown }[] }) => void): void;
}

/** Listens to every chart that comes into a place; returns the function that stops it. */
export function onPointClick(place: HTMLElement, chosen: (id: string) => void): () => void {
  const known = new WeakSet<Plot>();
  const join = (): void => {
    for (const plot of place.querySelectorAll<Plot>(".js-plotly-plot")) {
      if (known.has(plot) || !plot.on) continue;
      known.add(plot);
      plot.on("plotly_click", ({ points }) => {
        const id = points?.[0]?.customdata;
        if (typeof id === "string" && id !== "") chosen(id);
      });
    }
  };
  const observer = new MutationObserver(join);
  observer.observe(place, { childList: true, subtree: true, attributes: true, attributeFilter: ["class"] });
  join();
  return () => observer.disconnect();
}
