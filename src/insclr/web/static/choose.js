// Choosing several photos (tick, tap, Shift for a range, long press) and the bar with what can be done with them.

import { byId, counted, element, toast } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { NameField } from "./naming.js";
import { attempt, showUndo } from "./shell.js";

const LONG = 450; // milliseconds of a long press
const MOVED = 10; // pixels from which on a finger scrolls
const MOST = 500; // photos of one request

export class Chosen {
  // changed(done): names have changed. search(photos): search from them.
  // remove: {label, does(photos)}, where the chosen photos can be taken out of what is shown. painted(): others are chosen.
  constructor({ changed, search, remove, originals, painted }) {
    Object.assign(this, { changed, search, removing: remove, originals, painted, photos: new Map(), known: new Map(), last: null });
    this.field = new NameField({
      refs: () => this.asked(), give: (what) => this.name(what), label: "Name the chosen photos", hint: "Name, or add to …",
    });
    this.bar = this.makeBar();
    document.body.append(this.bar);
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.photos.size && !document.querySelector("dialog[open]")) this.clear();
    });
  }

  makeBar() {
    const act = (id, text, does, title = text) => {
      const made = element("button", { id, title }, [text]);
      made.addEventListener("click", does);
      return made;
    };
    this.count = element("b", { role: "status" });
    this.acts = element("div", { class: "choose-acts" }, [
      ...(this.removing ? [act("choose-remove", this.removing.label, () => this.remove())] : []),
      act("choose-split", "A new thing", () => this.name({ name: "" }), "Make a new thing of them; its name can follow"),
      act("choose-search", "Search from these", () => this.search([...this.photos.values()])),
      act("choose-list", "Download list", () => this.saveList(), "Download their paths and names as CSV"),
      act("choose-zip", "Download photos", () => this.saveZip(), "Download the files as a ZIP"),
    ]);
    const clear = act("choose-clear", "✕", () => this.clear(), "Choose none (Esc)");
    clear.className = "icon";
    clear.setAttribute("aria-label", "Choose none");
    return element("section", { class: "choose-bar", id: "choose", "aria-label": "Chosen photos", hidden: "" }, [clear, this.count, this.field.place, this.acts]);
  }

  // The tick of a tile.
  tick(match, tile) {
    this.known.set(match.ref, match);
    const made = element("button", { class: "tick", role: "checkbox", "aria-checked": "false", "aria-label": `Choose ${match.path}`, title: "Choose (x)", tabindex: -1 }, ["✓"]);
    made.addEventListener("click", (event) => this.toggle(match, event.shiftKey));
    this.wirePress(tile, match);
    this.show(tile, made, match.ref);
    return made;
  }

  // A long press chooses; while some are chosen, and with Shift, a click does too.
  wirePress(tile, match) {
    let timer = 0;
    let start = null;
    let pressed = false;
    const stop = () => clearTimeout(timer);
    tile.addEventListener("pointerdown", (event) => {
      pressed = false;
      if (event.pointerType === "mouse") return;
      start = event;
      timer = setTimeout(() => {
        pressed = true;
        this.toggle(match);
        navigator.vibrate?.(15);
      }, LONG);
    });
    tile.addEventListener("pointermove", (event) => start && Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) > MOVED && stop());
    for (const kind of ["pointerup", "pointercancel", "pointerleave"]) tile.addEventListener(kind, stop);
    tile.addEventListener("contextmenu", (event) => (pressed || this.photos.size) && event.preventDefault());
    tile.addEventListener("click", (event) => {
      const picks = event.target.closest(".go") && (this.photos.size || event.shiftKey);
      if (!pressed && !picks) return;
      event.stopPropagation();
      event.preventDefault();
      if (!pressed) this.toggle(match, event.shiftKey);
      pressed = false;
    }, true);
  }

  toggle(match, range = false) {
    const on = !this.photos.has(match.ref);
    const refs = range && this.last ? this.between(this.last, match.ref) : [match.ref];
    for (const ref of refs) {
      if (on || range) this.photos.set(ref, this.known.get(ref) ?? match);
      else this.photos.delete(ref);
    }
    this.last = match.ref;
    this.paint();
  }

  // The photos from one to another, as they stand on the page.
  between(from, to) {
    const shown = [...document.querySelectorAll(".tile[data-ref]")].filter((one) => one.offsetParent).map((one) => one.dataset.ref);
    const ends = [shown.indexOf(from), shown.indexOf(to)].sort((a, b) => a - b);
    return ends[0] < 0 ? [to] : shown.slice(ends[0], ends[1] + 1);
  }

  clear() {
    this.photos.clear();
    this.last = null;
    this.paint();
  }

  has(ref) {
    return this.photos.has(ref);
  }

  show(tile, tick, ref) {
    const on = this.photos.has(ref);
    tick.setAttribute("aria-checked", String(on));
    tile.classList.toggle("chosen", on);
  }

  paint() {
    for (const tile of document.querySelectorAll(".tile[data-ref]")) {
      const tick = tile.querySelector(".tick");
      if (tick) this.show(tile, tick, tile.dataset.ref);
    }
    const { size } = this.photos;
    this.bar.hidden = !size;
    document.body.classList.toggle("choosing", size > 0);
    this.count.textContent = `${counted(size, "photo")} chosen`;
    if (this.removing) byId("choose-remove").hidden = [...this.photos.values()].every((one) => one.thing_id === ""); // in no thing
    byId("choose-zip").hidden = this.originals?.() === false;
    this.field.reset();
    this.painted?.();
  }

  asked() {
    const photos = [...this.photos.values()];
    return { refs: photos.map((one) => one.ref).slice(0, MOST), fingerprint: photos[0]?.fingerprint ?? "" };
  }

  async change(work) {
    if (this.photos.size > MOST) return toast(`Choose at most ${MOST} photos at once.`);
    const photos = [...this.photos.values()];
    const done = await attempt(() => work(photos));
    if (!done) return;
    this.clear();
    toast(done.message);
    await showUndo();
    this.changed(done);
  }

  name(what) {
    return this.change(() => feedback.namePhotos(this.asked(), what));
  }

  remove() {
    return this.change((photos) => this.removing.does(photos, this.asked()));
  }

  removeOnly(match) {
    this.photos = new Map([[match.ref, match]]);
    return this.remove();
  }

  saveList() {
    const lines = [...this.photos.values()].map((one) => [one.path, one.thing ?? ""].map(cell).join(","));
    save(new Blob([`\ufeff${["path,name", ...lines].join("\r\n")}\r\n`], { type: "text/csv" }), "photos.csv");
  }

  async saveZip() {
    toast("Preparing the ZIP …");
    const content = await attempt(() => feedback.zip(this.asked()));
    if (content) save(content, "photos.zip");
  }
}

// A text as a CSV cell that no spreadsheet runs as a formula.
function cell(text) {
  const safe = /^'*[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function save(content, name) {
  const link = element("a", { href: URL.createObjectURL(content), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
