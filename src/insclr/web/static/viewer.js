// A photo seen large, with what is known about it and what can be done with it.

import { reasonMissing } from "./api.js";
import { byId, copyText, counted, element, toast } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { NameField } from "./naming.js";
import { attempt, showUndo } from "./shell.js";
import { BANDS, bandOf, copiesOf } from "./tiles.js";
import { explain } from "./why.js";
import { Zoom } from "./zoom.js";

const WHOLE = [0, 0, 1, 1];

export class Viewer {
  // actions: search(match), about(): what the server offers; optional: add(match), viewed(match or null): null when it
  // closes, chosen: the photos that are chosen, renamed(): names have changed.
  constructor(actions) {
    Object.assign(this, { actions, dialog: byId("viewer"), matches: [], at: 0, match: null });
    this.zoom = new Zoom(byId("viewer-stage"), byId("large"), { swiped: (by) => this.step(by), dismissed: () => this.dialog.close() });
    byId("previous").addEventListener("click", () => this.step(-1));
    byId("next").addEventListener("click", () => this.step(1));
    byId("zoom-in").addEventListener("click", () => this.zoom.by(1.6));
    byId("zoom-out").addEventListener("click", () => this.zoom.by(1 / 1.6));
    byId("viewer-search").addEventListener("click", () => this.leave(actions.search));
    byId("viewer-add").hidden = !actions.add;
    byId("viewer-add").addEventListener("click", () => this.leave(actions.add));
    byId("viewer-pick").hidden = !actions.chosen;
    byId("viewer-pick").addEventListener("click", () => this.pick());
    byId("viewer-not").addEventListener("click", () => this.leave((match) => actions.chosen.removeOnly(match)));
    byId("copy-link").addEventListener("click", () => this.copyLink());
    byId("viewer-rename").addEventListener("click", () => this.rename());
    this.field = new NameField({
      refs: () => ({ refs: [this.match.ref], fingerprint: this.match.fingerprint }), give: (what) => this.name(what),
      label: "Name of the thing", hint: "What is this?",
    });
    byId("viewer-naming").append(this.field.place);
    byId("viewer-why").addEventListener("click", () => explain(this.match));
    byId("copy-path").addEventListener("click", () => this.copyPath());
    byId("large").addEventListener("error", () => this.missing());
    byId("large").addEventListener("load", () => byId("viewer-stage").classList.remove("loading"));
    this.dialog.addEventListener("keydown", (event) => this.key(event));
    this.dialog.addEventListener("close", () => {
      byId("large").removeAttribute("src");
      this.match = null;
      actions.viewed?.(null);
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
    byId("facts").replaceChildren(...listed(facts(match)));
    byId("details").replaceChildren(...listed(details(match)));
    this.showCopies(match);
    this.showName();
    this.showPick();
    const removing = this.actions.chosen?.removing;
    byId("viewer-not").textContent = removing?.label ?? "";
    byId("viewer-not").hidden = !removing || match.is_query || match.thing_id === "" || !match.fingerprint;
    this.showParent();
    this.actions.viewed?.(match);
  }

  // The name of the thing with a link to it; where there is none, the field to give one.
  showName() {
    const { match } = this;
    const thing = match.thing ? [element("a", { href: `things#${match.ref}` }, [match.thing])] : ["no name yet"];
    byId("viewer-thing").replaceChildren(...thing);
    byId("viewer-rename").hidden = !match.fingerprint;
    byId("viewer-rename").textContent = match.thing ? "Edit" : "Name it";
    this.field.place.hidden = true;
    this.field.reset();
  }

  rename() {
    this.field.place.hidden = false;
    byId("viewer-rename").hidden = true;
    this.field.input.focus();
  }

  async name(what) {
    const { match } = this;
    const done = await attempt(() => feedback.namePhotos({ refs: [match.ref], fingerprint: match.fingerprint }, what));
    if (!done) return;
    match.thing = what.name;
    toast(done.message);
    if (this.match === match) this.showName();
    await showUndo();
    this.actions.renamed?.();
  }

  pick() {
    this.actions.chosen.toggle(this.match);
    this.showPick();
  }

  showPick() {
    const on = Boolean(this.actions.chosen?.has(this.match.ref));
    byId("viewer-pick").setAttribute("aria-pressed", String(on));
    byId("viewer-pick").textContent = on ? "Chosen" : "Choose";
  }

  // The whole photo with a frame: around the part that a row is, or where a search found the thing.
  showParent() {
    const { part, box, picture } = this.match;
    const frame = part ?? (box?.some((side, i) => side !== WHOLE[i]) ? box : null);
    byId("parent").hidden = !frame;
    if (!frame) return byId("parent-photo").removeAttribute("src");
    byId("parent-caption").textContent = part ? "The whole photo" : "Where the thing is";
    byId("parent-photo").src = part ? `${picture}?whole=true` : picture;
    const [left, top, right, bottom] = frame.map((side) => `${100 * side}%`);
    Object.assign(byId("parent-box").style, { left, top, width: `calc(${right} - ${left})`, height: `calc(${bottom} - ${top})` });
  }

  async copyLink() {
    const address = new URL(`./?view=${this.match.ref}`, location.href).href;
    toast((await copyText(address)) ? "Copied the link to this photo." : `The browser does not allow copying. The link is: ${address}`);
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
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input")) return;
    const does = {
      ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
      "+": () => this.zoom.by(1.6), "=": () => this.zoom.by(1.6), "-": () => this.zoom.by(1 / 1.6), 0: () => this.zoom.reset(),
      x: () => this.actions.chosen && this.pick(), n: () => this.rename(), a: () => this.actions.add && this.leave(this.actions.add), s: () => this.leave(this.actions.search), c: () => this.copyPath(),
    }[event.key];
    if (does) does();
    else if (event.key === " " && !event.target.closest("button, a")) this.dialog.close();
    else return;
    event.preventDefault();
  }
}

function facts(match) {
  const found = [];
  if (match.is_query) found.push(["found", "this is your photo"]);
  else if (match.score !== undefined) found.push(["same thing", `${Math.round(match.score * 100)} % · ${BANDS.find((one) => one.name === bandOf(match)).title.toLowerCase()}`]);
  return [...found, ...Object.entries(match.columns ?? {})];
}

// What only engineers need.
function details(match) {
  const found = [["row", match.ref]];
  if (match.similarity !== undefined) found.push(["cosine", match.similarity.toFixed(4)]);
  if (match.score !== undefined) found.push(["score", match.score.toFixed(4)]);
  if (match.inliers) found.push(["matched points", String(match.inliers)]);
  return found;
}

const listed = (pairs) => pairs.flatMap(([name, value]) => [element("dt", {}, [name]), element("dd", {}, [value || "–"])]);
