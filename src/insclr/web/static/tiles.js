// A photo as a tile: a picture that opens, badges, a tick to choose it, and small buttons.

import { counted, element } from "./dom.js";
import { whyButton } from "./why.js";

// Near-identical photos behind a tile: a list of them, or only their number.
export const copiesOf = (match) => (Array.isArray(match.copies) ? match.copies.length : match.copies ?? 0);

// What a score means, in words of people. "Likely" is more likely right than wrong.
export const BANDS = [
  { name: "sure", title: "Sure", hint: "show the same thing" },
  { name: "likely", title: "Likely", hint: "most of these show it" },
  { name: "possible", title: "Possible", hint: "worth checking: some of these show it too" },
  { name: "unlikely", title: "Unlikely", hint: "probably show something else" },
];
export const bandOf = (match) => (match.band === "sure" ? "sure" : match.band === "other" ? "unlikely" : match.likely ? "likely" : "possible");

const percent = (score) => `${Math.round(score * 100)} %`;

// actions: open(match, i), search(match), add(match), chosen: the photos that are chosen (choose.js).
// A photo without a score is one to start from, or one of a list.
export function makeTile(match, i, actions, startsSearch = false) {
  const scored = match.score !== undefined;
  const band = scored ? bandOf(match) : "";
  const tile = element("div", { class: `tile ${band}${match.is_query ? " own" : ""}`, title: match.path, "data-ref": match.ref });
  tile.style.setProperty("--i", i);
  const image = element("img", { src: match.thumbnail, alt: "", loading: "lazy", decoding: "async" });
  image.addEventListener("error", () => tile.classList.add("gone"));
  const go = element("button", { class: "go", "aria-label": label(match, startsSearch), tabindex: i ? -1 : 0 });
  go.addEventListener("click", () => (startsSearch ? actions.search(match) : actions.open(match, i)));
  tile.append(image, go, ...badges(match), controls(match, actions, startsSearch));
  if (actions.chosen) tile.append(actions.chosen.tick(match, tile));
  return tile;
}

function controls(match, actions, startsSearch) {
  const control = (name, text, title, action) => {
    const button = element("button", { "data-do": name, "aria-label": `${title}: ${match.path}`, title, tabindex: -1 }, [text]);
    button.addEventListener("click", () => action(match));
    return button;
  };
  const made = [];
  if (match.score !== undefined && !match.is_query) made.push(whyButton(match)); // the query itself needs no reason
  if (actions.add) made.push(control("add", "+", "Add to the query (a)", actions.add));
  if (!startsSearch) made.push(control("search", icon(MAGNIFIER), "Search from this photo (s)", actions.search));
  return element("div", { class: "does" }, made);
}

function label(match, startsSearch) {
  if (startsSearch) return `${match.path}: search from this photo`;
  const parts = [match.path, match.thing];
  if (match.is_query) parts.push("your photo");
  else if (match.score !== undefined) parts.push(`${bandOf(match)}, ${percent(match.score)}`);
  if (copiesOf(match)) parts.push(counted(copiesOf(match), "copy", "copies"));
  return `${parts.filter(Boolean).join(", ")}: open`;
}

function badges(match) {
  const found = [];
  if (match.is_query) found.push(element("span", { class: "badge mine" }, ["your photo"]));
  else if (match.score !== undefined) found.push(element("span", { class: "badge score" }, [percent(match.score)]));
  else if (typeof match.fit === "number") found.push(element("span", { class: "badge score", title: "How likely it shows its thing" }, [percent(match.fit)]));
  if (copiesOf(match)) found.push(element("span", { class: "badge copies", title: `${counted(copiesOf(match), "near-identical copy", "near-identical copies")}` }, [`+${copiesOf(match)}`]));
  if (match.thing) found.push(element("span", { class: "badge thing" }, [match.thing]));
  if (match.by === "score") found.push(element("span", { class: "badge by", title: "It joined by its score; nobody has confirmed it" }, ["by score"]));
  return found;
}

const MAGNIFIER = "M13.2 13.2 17 17M14.5 8.8a5.7 5.7 0 1 1-11.4 0 5.7 5.7 0 0 1 11.4 0Z";
export const ENLARGE = "M3 8V3h5M17 12v5h-5M3 3l6 6M17 17l-6-6";

export function icon(lines) {
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 20 20", "aria-hidden": "true" })) drawn.setAttribute(name, value);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", lines);
  drawn.append(path);
  return drawn;
}

// Moving through tiles by keys. `place` holds the tiles, `matchOf(ref)` gives the photo of one.
export class TileKeys {
  constructor(place, actions, matchOf) {
    Object.assign(this, { place, actions, matchOf });
    place.addEventListener("keydown", (event) => this.key(event));
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
    const match = this.matchOf(buttons[here].closest(".tile").dataset.ref);
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -here, End: buttons.length - 1 - here };
    if (event.key in moves) this.focus(here + moves[event.key]);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.focus(vertical(buttons, here, event.key === "ArrowDown"));
    else if (event.key === "a" && this.actions.add) this.actions.add(match);
    else if (event.key === "s") this.actions.search(match);
    else if (event.key === "x" && this.actions.chosen) this.actions.chosen.toggle(match, event.shiftKey);
    else if (event.key === " ") this.actions.open(match);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
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
