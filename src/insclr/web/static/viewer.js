// A result seen closely, with what is known about it.

import { byId, element } from "./dom.js";

export class Viewer {
  constructor(actions) {
    this.dialog = byId("viewer");
    this.matches = [];
    this.at = 0;
    byId("previous").addEventListener("click", () => this.step(-1));
    byId("next").addEventListener("click", () => this.step(1));
    byId("viewer-search").addEventListener("click", () => this.then(actions.search));
    byId("viewer-add").addEventListener("click", () => this.then(actions.add));
    this.dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) this.step(by);
      else if (event.key === "a") this.then(actions.add);
      else if (event.key === " " && event.target.tagName !== "BUTTON") this.dialog.close();
      else return;
      event.preventDefault();
    });
    byId("large").addEventListener("error", () => {
      byId("large").alt = "This file is gone or cannot be read.";
    });
  }

  open(matches, at) {
    this.matches = matches;
    this.dialog.showModal();
    this.dialog.focus(); // not its first button: Space closes what Space has opened
    this.show(at);
  }

  step(by) {
    this.show((this.at + by + this.matches.length) % this.matches.length);
  }

  then(action) {
    this.dialog.close();
    action(this.matches[this.at]);
  }

  show(at) {
    this.at = at;
    const match = this.matches[at];
    byId("large").alt = match.path;
    byId("large").src = match.picture;
    byId("facts-path").textContent = match.path;
    const facts = [];
    if (match.score !== undefined) {
      facts.push(["score", `${Math.round(match.score * 100)} %${match.likely ? " · likely" : ""}`], ["cosine", match.similarity.toFixed(4)]);
    }
    facts.push(...Object.entries(match.columns));
    byId("facts").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, [name]), element("dd", {}, [value || "–"])]));
  }
}
