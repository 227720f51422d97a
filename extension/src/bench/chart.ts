/** The chart of runs, which Python draws with plotly: it is kept live, and a click on a point makes its choices current. */

interface Plot extends HTMLElement {
  on?(event: "plotly_click", heard: (event: { points?: { customdata?: unknown }[] }) => void): void;
}

/** Follows every chart that comes into a place, by the ids of clicked runs; returns the function that stops it. */
export function followCharts(place: HTMLElement, chosen: (id: string) => void): () => void {
  const known = new WeakSet<Plot>();
  const join = (): void => {
    for (const image of place.querySelectorAll<HTMLImageElement>("img.plot-img[src]")) enliven(image);
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
  observer.observe(place, { childList: true, subtree: true, attributes: true, attributeFilter: ["class", "src"] });
  join();
  return () => observer.disconnect();
}

const awake = new WeakSet<HTMLImageElement>();

/**
 * A second view of an output shows the picture that plotly's renderer took of the first one, of its size and theme and
 * deaf to clicks, until a pointer enters it.
 */
function enliven(image: HTMLImageElement): void {
  if (awake.has(image) || image.closest(".js-plotly-plot")) return;
  awake.add(image);
  image.dispatchEvent(new MouseEvent("mouseenter"));
}
