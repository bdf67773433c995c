// What is searched for: the shown photo with its box, and the set of photos that form the query.

import { BoxEditor } from "./box.js";
import { byId, element, refill } from "./dom.js";

export class QueryPanel {
  // actions: boxed(i, box), show(i), remove(i), pick(), join(way).
  constructor(actions) {
    this.actions = actions;
    this.at = 0;
    this.editor = new BoxEditor(byId("canvas"), byId("shown"), byId("box"), (box) => {
      this.mark(false);
      actions.boxed(this.at, box);
    });
    byId("clear-box").addEventListener("click", () => actions.boxed(this.at, null));
    byId("mark").addEventListener("click", () => this.mark(!this.editor.marking));
    for (const one of document.querySelectorAll("[data-join]")) one.addEventListener("click", () => actions.join(one.dataset.join));
  }

  // Let a finger draw instead of scroll, until a box is drawn.
  mark(on) {
    this.editor.mark(on);
    byId("stage").classList.toggle("marking", on); // large enough for a finger
    byId("mark").setAttribute("aria-pressed", String(on));
    byId("mark").textContent = on ? "Now draw around it" : "Mark a part";
  }

  render({ query, at, join }) {
    this.at = at;
    byId("stage").hidden = byId("panel").hidden = !query.length;
    if (query[at]) this.renderStage(query[at]);
    refill(byId("set"), ...query.map((item, i) => this.member(item, i, i === at)), this.adder());
    byId("join-field").hidden = query.length < 2;
    for (const one of document.querySelectorAll("[data-join]")) one.setAttribute("aria-pressed", String(one.dataset.join === join));
  }

  renderStage(shown) {
    if (byId("shown").getAttribute("src") !== shown.picture) byId("shown").src = shown.picture;
    byId("stage-name").textContent = byId("stage-name").title = shown.name;
    byId("clear-box").hidden = !shown.box;
    byId("box-hint").hidden = Boolean(shown.box);
    this.editor.set(shown.box);
  }

  member(item, i, shown) {
    const select = element("button", { "aria-pressed": String(shown), "aria-label": `Show ${item.name}` }, [element("img", { src: item.thumbnail, alt: "" })]);
    select.addEventListener("click", () => this.actions.show(i));
    const remove = element("button", { class: "remove", "aria-label": `Remove ${item.name}`, title: "Remove" }, ["✕"]);
    remove.addEventListener("click", () => this.actions.remove(i));
    return element("li", {}, item.box ? [select, element("span", { class: "part" }), remove] : [select, remove]);
  }

  adder() {
    const add = element("button", { "aria-label": "Add a photo to the query", title: "Add a photo" }, ["+"]);
    add.addEventListener("click", () => this.actions.pick());
    return element("li", { class: "add" }, [add]);
  }
}
