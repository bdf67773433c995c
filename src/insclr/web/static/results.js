// The grid of results: tiles, the cut-off between likely matches and the rest, and moving through them by keys.

import { element } from "./dom.js";
import { whyButton } from "./why.js";

export class Results {
  constructor(place, actions) {
    this.place = place;
    this.actions = actions; // search(match), add(match), open(index)
    this.matches = [];
    place.addEventListener("keydown", (event) => this.key(event));
  }

  waiting(count = 12) {
    const tiles = Array.from({ length: count }, () => element("div", { class: "tile wait" }));
    this.place.replaceChildren(element("div", { class: "tiles" }, tiles));
  }

  showSample(pictures) {
    this.matches = pictures;
    this.place.replaceChildren(element("div", { class: "tiles" }, pictures.map((one, i) => this.tile(one, i))));
  }

  show(answer) {
    this.matches = answer.matches;
    if (!answer.matches.length) {
      const advice = "Loosen the filter or the least score, or draw a box around the thing.";
      this.place.replaceChildren(element("div", { class: "none" }, [element("b", {}, ["Nothing found"]), advice]));
      return;
    }
    const tiles = answer.matches.map((match, i) => this.tile(match, i));
    // Re-ranked results are not in the order of their scores: there the dimmed tiles say what is unlikely.
    const split = answer.reranked ? tiles.length : answer.likely;
    const parts = [element("div", { class: "tiles" }, tiles.slice(0, split))];
    if (split < tiles.length) {
      const what = split ? "likely matches end here" : "no likely match";
      const line = ` · below, it is more likely something else`;
      parts.push(element("div", { class: "cut", id: "cut", role: "separator" }, [element("span", {}, [element("strong", {}, [what]), line])]));
      parts.push(element("div", { class: "tiles" }, tiles.slice(split)));
    }
    this.place.replaceChildren(...parts);
  }

  tile(match, i) {
    const scored = match.score !== undefined;
    const percent = scored ? `${Math.round(match.score * 100)} %` : "";
    const kind = scored ? (match.likely ? " likely" : " unlikely") : "";
    const tile = element("div", { class: `tile${kind}`, title: match.path, "data-ref": match.ref });
    tile.style.setProperty("--i", i);
    const image = element("img", { src: match.thumbnail, alt: "", loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => tile.classList.add("gone"));
    const label = `${match.path}${scored ? `, score ${percent}` : ""}: search from this picture`;
    const go = element("button", { class: "go", "aria-label": label, tabindex: i ? -1 : 0 });
    go.addEventListener("click", (event) => (event.shiftKey ? this.actions.add(match) : this.actions.search(match)));
    const add = element("button", { "data-do": "add", "aria-label": "Add to the query", title: "Add to the query (a)", tabindex: -1 }, ["+"]);
    add.addEventListener("click", () => this.actions.add(match));
    const open = element("button", { "data-do": "open", "aria-label": "Look closely", title: "Look closely (space)", tabindex: -1 }, ["⤢"]);
    open.addEventListener("click", () => this.actions.open(i));
    tile.append(image, go, element("div", { class: "does" }, scored ? [add, open, whyButton(match)] : [add, open]));
    if (scored) {
      const cosine = `cosine ${match.similarity.toFixed(3)}`;
      tile.append(element("span", { class: "score", title: cosine }, [percent]));
    }
    return tile;
  }

  buttons() {
    return [...this.place.querySelectorAll(".tile .go")];
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
    else if (event.key === " ") this.actions.open(here);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

// The nearest tile in the row above or below, across the cut-off too.
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
