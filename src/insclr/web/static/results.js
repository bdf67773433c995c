// The results: tiles in the bands sure, maybe and other, what to do when there are none, and moving through them by keys.

import { counted, element } from "./dom.js";
import { whyButton } from "./why.js";

const BANDS = [
  { name: "sure", title: "Sure", hint: "show the same thing" },
  { name: "maybe", title: "Maybe", hint: "worth a look: some of these show it too" },
  { name: "other", title: "Other", hint: "probably show something else" },
];
// Near-identical photos behind a tile: a list of them, or only their number.
export const copiesOf = (match) => (Array.isArray(match.copies) ? match.copies.length : match.copies ?? 0);

// How many tiles each band holds; the query itself is no answer.
export function countBands(matches) {
  const counts = { sure: 0, maybe: 0, other: 0 };
  for (const match of matches) if (!match.is_query) counts[match.band] += 1;
  return counts;
}

export class Results {
  constructor(place, actions) {
    this.place = place;
    this.actions = actions; // search(match), add(match), open(index)
    this.matches = []; // in the order of the tiles
    this.otherOpen = false;
    place.addEventListener("keydown", (event) => this.key(event));
  }

  waiting(count = 12) {
    const tiles = Array.from({ length: count }, () => element("div", { class: "tile wait" }));
    this.place.replaceChildren(element("div", { class: "tiles" }, tiles));
  }

  // Photos to start from: a click searches.
  showSample(photos) {
    this.matches = photos;
    this.place.replaceChildren(element("div", { class: "tiles" }, photos.map((one, i) => this.tile(one, i))));
  }

  // `end` stands behind the last tile: a button for more.
  show(matches, end) {
    if (!matches.length) {
      this.message("Nothing found", "Loosen the filters or the least score, or draw a box around the thing.");
      return;
    }
    // The query's own photo is no answer of any band: it comes first of all.
    const own = matches.filter((one) => one.is_query);
    const found = BANDS.map((band) => ({ ...band, matches: matches.filter((one) => !one.is_query && one.band === band.name) }));
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
    const tiles = element("div", { class: "tiles" }, matches.map((match, i) => this.tile(match, first + i)));
    const named = { class: `band ${name}`, "data-band": name, "aria-labelledby": `band-${name}` };
    if (name !== "other") return element("section", named, [element("div", { class: "band-head" }, head), tiles]);
    const part = element("details", named, [element("summary", { class: "band-head" }, head), tiles]);
    part.open = alone || this.otherOpen;
    part.addEventListener("toggle", () => {
      this.otherOpen = part.open;
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

  tile(match, i) {
    const sample = match.score === undefined;
    const band = sample ? "" : match.band;
    const tile = element("div", { class: `tile ${band}${match.is_query ? " own" : ""}`, title: match.path, "data-ref": match.ref });
    tile.style.setProperty("--i", i);
    const image = element("img", { src: match.thumbnail, alt: "", loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => tile.classList.add("gone"));
    const go = element("button", { class: "go", "aria-label": label(match, sample), tabindex: i ? -1 : 0 });
    go.addEventListener("click", (event) => {
      if (event.shiftKey) this.actions.add(match);
      else if (sample) this.actions.search(match);
      else this.actions.open(i);
    });
    tile.append(image, go, ...badges(match, sample), this.controls(match, sample));
    return tile;
  }

  controls(match, sample) {
    const control = (name, text, title, action) => {
      const button = element("button", { "data-do": name, "aria-label": `${title}: ${match.path}`, title, tabindex: -1 }, [text]);
      button.addEventListener("click", () => action(match));
      return button;
    };
    const add = control("add", "+", "Add to the query (a)", this.actions.add);
    const search = control("search", magnifier(), "Search from this photo (s)", this.actions.search);
    const why = sample || match.is_query ? [] : [whyButton(match)]; // the query itself needs no reason
    return element("div", { class: "does" }, sample ? [add] : [...why, add, search]);
  }

  buttons() {
    return [...this.place.querySelectorAll(".tile .go")].filter((one) => one.offsetParent);
  }

  focus(i) {
    const buttons = this.buttons();
    const goal = buttons[Math.min(buttons.length - 1, Math.max(0, i))];
    for (const one of buttons) one.tabIndex = one === goal ? 0 : -1;
    goal?.focus();
    goal?.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const buttons = this.buttons();
    const here = buttons.indexOf(document.activeElement);
    if (here < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -here, End: buttons.length - 1 - here };
    if (event.key in moves) this.focus(here + moves[event.key]);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.focus(vertical(buttons, here, event.key === "ArrowDown"));
    else if (event.key === "a") this.actions.add(this.matches[here]);
    else if (event.key === "s") this.actions.search(this.matches[here]);
    else if (event.key === " ") this.actions.open(here);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

const percent = (match) => `${Math.round(match.score * 100)} %`;

function label(match, sample) {
  if (sample) return `${match.path}: search from this photo`;
  const parts = [match.path, match.thing, match.is_query ? "your photo" : `${match.band}, ${percent(match)}`];
  if (copiesOf(match)) parts.push(counted(copiesOf(match), "copy", "copies"));
  return `${parts.filter(Boolean).join(", ")}: open`;
}

function badges(match, sample) {
  const found = [];
  if (match.is_query) found.push(element("span", { class: "badge mine" }, ["your photo"]));
  else if (!sample) found.push(element("span", { class: "badge score", title: `cosine ${match.similarity.toFixed(3)}` }, [percent(match)]));
  if (copiesOf(match)) found.push(element("span", { class: "badge copies", title: `${counted(copiesOf(match), "near-identical copy", "near-identical copies")}` }, [`+${copiesOf(match)}`]));
  if (match.thing) found.push(element("span", { class: "badge thing" }, [match.thing]));
  return found;
}

function magnifier() {
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 20 20", "aria-hidden": "true" })) drawn.setAttribute(name, value);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", "M13.2 13.2 17 17M14.5 8.8a5.7 5.7 0 1 1-11.4 0 5.7 5.7 0 0 1 11.4 0Z");
  drawn.append(path);
  return drawn;
}

// The nearest tile in the row above or below, across the bands too.
function vertical(buttons, here, down) {
  const places = buttons.map((one) => one.getBoundingClientRect());
  const start = places[here];
  let best = here;
  let least = Infinity;
  places.forEach((place, i) => {
    const ahead = down ? place.top - start.top : start.top - place.top;
    if (ahead < start.height / 2) return;
    const distance = ahead * 10 + Math.abs(place.left - start.left);
    if (distance < least) [least, best] = [distance, i];
  });
  return best;
}
