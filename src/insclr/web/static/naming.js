// A field for the name of a thing: it offers the names that are known, the likeliest first by likeness of the photos.

import { counted, element } from "./dom.js";
import * as feedback from "./feedback_api.js";

let fields = 0;

export class NameField {
  // refs(): the photos that are named, {refs, fingerprint}. give({thing, name}): what the person chose.
  constructor({ refs, give, label, hint }) {
    fields += 1;
    Object.assign(this, { refs, give, things: null, shown: [], at: -1, id: `names-${fields}` });
    this.input = element("input", {
      type: "text", maxlength: "120", placeholder: hint, "aria-label": label, role: "combobox", autocomplete: "off",
      "aria-expanded": "false", "aria-controls": this.id, "aria-autocomplete": "list", spellcheck: "false",
    });
    this.list = element("ul", { id: this.id, role: "listbox", class: "name-options", "aria-label": "Names", hidden: "" });
    this.place = element("div", { class: "name-field" }, [this.input, this.list]);
    this.input.addEventListener("focus", () => this.open());
    this.input.addEventListener("input", () => this.paint());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.place.addEventListener("focusout", (event) => {
      if (!this.place.contains(event.relatedTarget)) this.close();
    });
  }

  // The photos have changed: what is likely is asked anew.
  reset() {
    this.things = null;
    this.input.value = "";
    this.close();
  }

  async open() {
    this.paint();
    if (this.things) return;
    const asked = this.refs();
    if (!asked.refs.length) return;
    const found = await feedback.likelyThings(asked).catch(() => []);
    this.things = found;
    if (document.activeElement === this.input) this.paint();
  }

  close() {
    this.list.hidden = true;
    this.at = -1;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  paint() {
    const typed = this.input.value.trim().toLocaleLowerCase();
    const fits = (this.things ?? []).filter((one) => one.name.toLocaleLowerCase().includes(typed)).slice(0, 8);
    const exact = (this.things ?? []).some((one) => one.name.toLocaleLowerCase() === typed);
    this.shown = fits.map((thing) => ({ thing }));
    if (typed && !exact) this.shown.push({ name: this.input.value.trim() });
    this.list.replaceChildren(...this.shown.map((one, i) => this.option(one, i)));
    this.list.hidden = !this.shown.length;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.mark(this.shown.length ? Math.min(Math.max(this.at, -1), this.shown.length - 1) : -1);
  }

  option({ thing, name }, i) {
    const parts = thing
      ? [element("img", { src: thing.covers[0]?.thumbnail ?? "", alt: "" }), element("b", {}, [thing.name]),
        element("span", {}, [`${Math.round(thing.score * 100)} % · ${counted(thing.photos, "photo")}`])]
      : [element("i", { class: "plus", "aria-hidden": "true" }, ["+"]), element("b", {}, [name]), element("span", {}, ["a new thing"])];
    const made = element("li", { role: "option", id: `${this.id}-${i}`, "aria-selected": "false", tabindex: -1 }, parts);
    made.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
    made.addEventListener("click", () => this.take(i));
    return made;
  }

  mark(at) {
    this.at = at;
    [...this.list.children].forEach((one, i) => one.setAttribute("aria-selected", String(i === at)));
    if (at >= 0) {
      this.input.setAttribute("aria-activedescendant", `${this.id}-${at}`);
      this.list.children[at].scrollIntoView({ block: "nearest" });
    } else this.input.removeAttribute("aria-activedescendant");
  }

  take(i) {
    const { thing, name } = this.shown[i];
    this.close();
    this.input.value = thing?.name ?? name;
    this.give(thing ? { thing: thing.id, name: thing.name } : { name });
  }

  key(event) {
    event.stopPropagation(); // letters are text here, no commands
    const typed = this.input.value.trim();
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (this.list.hidden) this.open();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (this.shown.length) this.mark((this.at + step + this.shown.length + (this.at < 0 && step < 0 ? 1 : 0)) % this.shown.length);
    } else if (event.key === "Escape" && !this.list.hidden) this.close();
    else if (event.key === "Enter" && this.at >= 0) this.take(this.at);
    else if (event.key === "Enter" && typed) {
      this.close();
      this.give({ name: typed });
    } else return;
    event.preventDefault();
  }
}
