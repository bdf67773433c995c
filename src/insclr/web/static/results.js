// The results: tiles in the bands sure, likely, possible and unlikely, and what to do when there are none.

import { counted, element } from "./dom.js";
import { BANDS, bandOf, copiesOf, makeTile, TileKeys } from "./tiles.js";

// How many tiles each band holds; the query itself is no answer.
export function countBands(matches) {
  const counts = { sure: 0, likely: 0, possible: 0, unlikely: 0 };
  for (const match of matches) if (!match.is_query) counts[bandOf(match)] += 1;
  return counts;
}

export class Results {
  constructor(place, actions) {
    this.place = place;
    this.actions = actions; // search(match), add(match), open(index)
    this.matches = []; // in the order of the tiles
    this.unlikelyOpen = false;
    this.keys = new TileKeys(place, { ...actions, open: (match) => actions.open(this.matches.indexOf(match)) }, (ref) => this.matches.find((one) => one.ref === ref));
  }

  focus(i) {
    this.keys.focus(i);
  }

  waiting(count = 12) {
    const tiles = Array.from({ length: count }, () => element("div", { class: "tile wait" }));
    this.place.replaceChildren(element("div", { class: "tiles" }, tiles));
  }

  // Photos to start from: a click searches.
  showSample(photos) {
    this.matches = photos;
    this.place.replaceChildren(element("div", { class: "tiles" }, photos.map((one, i) => makeTile(one, i, this.actions, true))));
  }

  // `end` stands behind the last tile: a button for more.
  show(matches, end) {
    if (!matches.length) {
      this.message("Nothing found", "Loosen the filters or the least score, or draw a box around the thing.");
      return;
    }
    // The query's own photo is no answer of any band: it comes first of all.
    const own = matches.filter((one) => one.is_query);
    const found = BANDS.map((band) => ({ ...band, matches: matches.filter((one) => !one.is_query && bandOf(one) === band.name) }));
    const bands = found.filter((band) => band.matches.length || band.name === "sure" && own.length === matches.length);
    bands[0].matches = [...own, ...bands[0].matches];
    this.matches = bands.flatMap((band) => band.matches);
    let first = 0;
    const parts = bands.map((band) => {
      const part = this.band(band, first, bands.length === 1);
      first += band.matches.length;
      return part;
    });
    parts.at(-1).append(end);
    this.place.replaceChildren(...parts);
  }

  band({ name, title, hint, matches }, first, alone) {
    const found = matches.filter((one) => !one.is_query);
    const copies = found.reduce((sum, one) => sum + copiesOf(one), 0);
    const count = found.length + (copies ? ` + ${counted(copies, "copy", "copies")}` : "");
    const head = [element("h2", { id: `band-${name}` }, [title, " ", element("span", { class: "count" }, [String(count)])]),
      element("span", { class: "hint" }, [hint])];
    const tiles = element("div", { class: "tiles" }, matches.map((match, i) => makeTile(match, first + i, { ...this.actions, open: () => this.actions.open(first + i) })));
    const named = { class: `band ${name}`, "data-band": name, "aria-labelledby": `band-${name}` };
    if (name !== "unlikely") return element("section", named, [element("div", { class: "band-head" }, head), tiles]);
    const part = element("details", named, [element("summary", { class: "band-head" }, head), tiles]);
    part.open = alone || this.unlikelyOpen;
    part.addEventListener("toggle", () => {
      this.unlikelyOpen = part.open;
    });
    return part;
  }

  // Instead of results: what went wrong or is missing, and buttons [label, action] to go on with.
  message(title, text, actions = [], kind = "none") {
    this.matches = [];
    const buttons = actions.map(([label, action]) => {
      const button = element("button", {}, [label]);
      button.addEventListener("click", action);
      return button;
    });
    this.place.replaceChildren(element("div", { class: kind, role: kind === "problem" ? "alert" : "note" }, [element("h2", {}, [title]), element("p", {}, [text]), element("div", { class: "actions" }, buttons)]));
  }
}
