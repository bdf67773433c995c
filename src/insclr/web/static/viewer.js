// A photo seen large, with what is known about it and what can be done with it.

import { reasonMissing } from "./api.js";
import { byId, copyText, counted, element, toast } from "./dom.js";
import { copiesOf } from "./results.js";
import { explain } from "./why.js";
import { Zoom } from "./zoom.js";

const BAND_NAMES = { sure: "sure", maybe: "maybe", other: "probably something else" };

export class Viewer {
  // actions: search(match), add(match), viewed(match or null): null when it closes, about(): what the server offers.
  constructor(actions) {
    Object.assign(this, { actions, dialog: byId("viewer"), matches: [], at: 0, match: null });
    this.zoom = new Zoom(byId("viewer-stage"), byId("large"), { swiped: (by) => this.step(by), dismissed: () => this.dialog.close() });
    byId("previous").addEventListener("click", () => this.step(-1));
    byId("next").addEventListener("click", () => this.step(1));
    byId("zoom-in").addEventListener("click", () => this.zoom.by(1.6));
    byId("zoom-out").addEventListener("click", () => this.zoom.by(1 / 1.6));
    byId("viewer-search").addEventListener("click", () => this.leave(actions.search));
    byId("viewer-add").addEventListener("click", () => this.leave(actions.add));
    byId("viewer-why").addEventListener("click", () => explain(this.match));
    byId("copy-path").addEventListener("click", () => this.copyPath());
    byId("large").addEventListener("error", () => this.missing());
    byId("large").addEventListener("load", () => byId("viewer-stage").classList.remove("loading"));
    this.dialog.addEventListener("keydown", (event) => this.key(event));
    this.dialog.addEventListener("close", () => {
      byId("large").removeAttribute("src");
      this.match = null;
      actions.viewed(null);
    });
  }

  get isOpen() {
    return this.dialog.open;
  }

  open(matches, at) {
    this.matches = matches;
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.focus(); // not its first button: Space closes what Space has opened
    this.goTo(at);
  }

  close() {
    if (this.dialog.open) this.dialog.close();
  }

  step(by) {
    this.goTo((this.at + by + this.matches.length) % this.matches.length);
  }

  goTo(at) {
    this.at = at;
    byId("viewer-place").textContent = this.matches.length > 1 ? `${at + 1} of ${this.matches.length}` : "";
    for (const id of ["previous", "next"]) byId(id).hidden = this.matches.length < 2;
    this.show(this.matches[at]);
    this.preload(at + 1);
  }

  preload(at) {
    const next = this.matches[at % this.matches.length];
    if (next !== this.match) new Image().src = next.picture;
  }

  leave(action) {
    const { match } = this;
    this.dialog.close();
    action(match);
  }

  show(match) {
    this.match = match;
    this.zoom.reset();
    byId("viewer-stage").classList.remove("gone");
    byId("viewer-stage").classList.add("loading");
    byId("missing").hidden = true;
    byId("large").alt = match.path;
    byId("large").src = match.picture;
    byId("facts-path").textContent = match.path;
    byId("viewer-why").hidden = match.score === undefined || match.is_query; // only of what a search has found
    this.offerFile(this.actions.about().originals && Boolean(match.original)); // a frame of a video has no file
    byId("download").href = `${match.original}?download=true`;
    byId("original").href = match.original;
    byId("facts").replaceChildren(...facts(match).flatMap(([name, value]) => [element("dt", {}, [name]), element("dd", {}, [value || "–"])]));
    this.showCopies(match);
    this.actions.viewed(match);
  }

  offerFile(there) {
    for (const id of ["download", "original"]) byId(id).hidden = !there;
  }

  // Near-identical photos that the results fold into one tile: photos to look at, or only their paths.
  showCopies(match) {
    const listed = Array.isArray(match.copies) ? match.copies : [];
    byId("copies").hidden = !listed.length;
    byId("copies-title").textContent = counted(copiesOf(match), "near-identical copy", "near-identical copies");
    byId("copies-list").replaceChildren(...listed.map((copy) => {
      if (typeof copy === "string") return element("li", { class: "path" }, [copy]);
      const button = element("button", { title: copy.path, "aria-label": `Show the copy ${copy.path}` }, [element("img", { src: copy.thumbnail, alt: "", loading: "lazy" })]);
      button.addEventListener("click", () => {
        this.show(copy);
        this.dialog.focus(); // the button that had it is gone
      });
      return element("li", {}, [button]);
    }));
  }

  async missing() {
    const { match } = this;
    if (!match) return;
    const stage = byId("viewer-stage");
    stage.classList.remove("loading");
    stage.classList.add("gone");
    this.offerFile(false);
    const reason = await reasonMissing(match.picture);
    if (match !== this.match) return;
    byId("missing-reason").textContent = reason;
    byId("missing").hidden = false;
  }

  async copyPath() {
    const { stores } = this.actions.about();
    const { folder } = stores[this.match.ref.split(":")[0]];
    const path = folder && !this.match.path.startsWith("/") ? `${folder}/${this.match.path}` : this.match.path;
    toast((await copyText(path)) ? `Copied: ${path}` : `The browser does not allow copying. The path is: ${path}`);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const does = {
      ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
      "+": () => this.zoom.by(1.6), "=": () => this.zoom.by(1.6), "-": () => this.zoom.by(1 / 1.6), 0: () => this.zoom.reset(),
      a: () => this.leave(this.actions.add), s: () => this.leave(this.actions.search), c: () => this.copyPath(),
    }[event.key];
    if (does) does();
    else if (event.key === " " && !event.target.closest("button, a")) this.dialog.close();
    else return;
    event.preventDefault();
  }
}

function facts(match) {
  const found = [];
  if (match.thing) found.push(["thing", match.thing]);
  if (match.is_query) found.push(["found", "this is your photo"]);
  else if (match.score !== undefined) found.push(["same thing", `${Math.round(match.score * 100)} % · ${BAND_NAMES[match.band]}`], ["cosine", match.similarity.toFixed(4)]);
  return [...found, ...Object.entries(match.columns ?? {})];
}
