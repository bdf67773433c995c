// The page of all things, and of one thing: name it, take photos out, split it, join it with another, hide it.

import { Chosen } from "./choose.js";
import { byId, counted, element } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { attempt, beginStore, searchFrom, showUndo, wireShell } from "./shell.js";
import { card, chooseThing, askName } from "./thing_cards.js";
import { makeTile, TileKeys } from "./tiles.js";
import { Viewer } from "./viewer.js";

const PAGE = 60;
let bar = null;
let shown = null; // the thing on the page
let tiles = []; // the photos on the page
let showsHidden = false;
let labelProposals = () => {}; // say how many proposals the buttons decide about

const button = (text, does, attributes = {}) => {
  const made = element("button", attributes, [text]);
  made.addEventListener("click", does);
  return made;
};

const search = (photos) => searchFrom(photos, bar.number);
const chosen = new Chosen({
  changed: (done) => (shown && done.id ? follow(done) : render()), search, originals: () => bar.about.originals, painted: () => labelProposals(),
  remove: { label: "Not this thing", does: (_, asked) => notThis(asked) },
});
const actions = { chosen, search: (match) => search([match]), open: (match) => viewer.open(tiles, tiles.indexOf(match)), about: () => bar.about, renamed: () => render() };
const viewer = new Viewer(actions);
new TileKeys(byId("page"), actions, (ref) => tiles.find((one) => one.ref === ref));

// Photos that wait for the thing are rejected; those that are in it are taken out.
async function notThis({ refs, ...asked }) {
  const waiting = (shown?.proposals ?? []).map((one) => one.ref);
  const [proposed, inside] = [true, false].map((waits) => refs.filter((one) => waiting.includes(one) === waits));
  const rejected = proposed.length ? await feedback.judgeProposals(shown, proposed, false) : null;
  return inside.length ? feedback.removePhotos({ ...asked, refs: inside }) : rejected;
}

const stale = (error) => error.status === 409 && render(); // a new model's photos

async function render() {
  const id = location.hash.slice(1);
  chosen.clear();
  await attempt(() => (id ? renderThing(id) : renderAll()), fail);
}

function fail(error) {
  const all = element("a", { href: "things" }, ["All things"]);
  byId("page").replaceChildren(element("h1", {}, ["Things"]), element("div", { class: "problem", role: "alert" }, [
    element("p", {}, [error.message]), element("div", { class: "actions" }, [button("Try again", render), all])]));
}

async function renderAll() {
  const found = await feedback.gallery(0, PAGE, showsHidden);
  shown = null;
  const cards = element("div", { class: "cards" }, found.things.map(card));
  const more = button("Show more", () => attempt(async () => {
    const next = await feedback.gallery(cards.children.length, PAGE, showsHidden);
    cards.append(...next.things.map(card));
    more.hidden = cards.children.length >= next.total;
  }));
  more.hidden = cards.children.length >= found.total;
  const hidden = button(showsHidden ? "Leave hidden ones out" : "Show hidden ones", () => { showsHidden = !showsHidden; render(); }, { class: "link" });
  const parts = [element("h1", {}, [counted(found.total, "thing")]), element("p", { class: "hint" }, [
    "Photos that look like one thing, the most first. Open one to name it or to put it right. ", hidden])];
  if (!found.total) parts.push(element("p", { class: "none" }, ["No photos look alike here. Name photos yourself: tick them below or among ", element("a", { href: "photos" }, ["all photos"]), "."]));
  parts.push(cards, more);
  tiles = [];
  if (found.alone) parts.push(await renderNew(found.alone));
  byId("page").replaceChildren(...parts);
}

// Photos that match nothing: each opens large, and can be chosen and named.
async function renderNew(count) {
  const found = await feedback.photos({ show: "new", count: 48 });
  tiles = found.photos.map((one) => ({ ...one, fingerprint: found.fingerprint }));
  const all = count > tiles.length ? [" ", element("a", { href: "photos?show=new" }, [`All ${count} new photos`])] : [];
  return element("section", { class: "alone" }, [
    element("h2", {}, [`New: ${counted(count, "photo")} that match nothing`]),
    element("p", { class: "hint" }, ["New things, or the only photo of one. Open one, or tick photos of one thing to name them or to add them to a thing.", ...all]),
    element("div", { class: "tiles", id: "new" }, tiles.map((one, i) => makeTile(one, i, actions))),
  ]);
}

async function renderThing(id) {
  const thing = await feedback.thing(id);
  labelProposals = () => {};
  shown = thing;
  tiles = thing.pictures.map((one) => ({ ...one, thing: "", fingerprint: thing.fingerprint, by: !one.confirmed && thing.confirmed ? "score" : "" }));
  const name = element("input", { id: "name", type: "text", maxlength: "120", placeholder: "What is this?", "aria-label": "Name", autocomplete: "off" });
  name.value = thing.name;
  const next = button("Save, next thing", () => save(thing, name.value, true), { type: "button", id: "save-next", title: "Save, and go to the next thing without a name" });
  const form = element("form", { class: "naming" }, [name, element("button", { class: "primary" }, ["Save the name"]), next]);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    save(thing, name.value);
  });
  const facts = [counted(thing.photos, "photo")];
  if (thing.confirmed && thing.confirmed < thing.photos) facts.push(`${thing.photos - thing.confirmed} joined by their score`);
  if (thing.uncertain) facts.push("these may be several things");
  byId("page").replaceChildren(
    element("p", {}, [element("a", { href: "things" }, ["All things"])]),
    element("h1", {}, [thing.name || "A thing without a name"]),
    form,
    element("p", { class: "hint", id: "thing-facts" }, [facts.join(" · ")]),
    element("div", { class: "acts", id: "acts" }, [
      button("Join with …", () => join(thing), { id: "merge" }),
      button("Choose all", () => chooseAll(), { id: "choose-all" }),
      button(thing.hidden ? "Show again" : "Hide", () => change(() => feedback.hide(thing.id, !thing.hidden)), { id: "hide" }),
    ]),
    element("p", { class: "hint" }, ["Open a photo to see it large. Tick photos (on a phone: press long) to take them out, to make a new thing of them, or to add them to another."]),
    element("div", { class: "tiles", id: "photos" }, tiles.map((one, i) => makeTile(one, i, actions))),
  );
  if (thing.proposals?.length) byId("photos").before(proposals(thing));
  if (thing.other_part?.length) byId("thing-facts").append(" · ", button(`Choose the ${thing.other_part.length} that differ`, () => chooseOnly(thing.other_part), { class: "link", id: "choose-part" }));
  if (!thing.name) name.focus({ preventScroll: true });
}

// Photos that look like the thing and wait for a person: the chosen ones among them, else all, are confirmed or rejected.
function proposals(thing) {
  const found = thing.proposals.map((one) => ({ ...one, fingerprint: thing.fingerprint }));
  tiles.push(...found);
  const judged = () => {
    const some = found.filter((one) => chosen.has(one.ref));
    return (some.length ? some : found).slice(0, 500);
  };
  const judge = (same) => change(() => feedback.judgeProposals(thing, judged().map((one) => one.ref), same));
  const [yes, no] = [button("", () => judge(true), { class: "primary", id: "confirm" }), button("", () => judge(false), { id: "reject" })];
  labelProposals = () => {
    const one = judged().length === 1;
    yes.textContent = `${counted(judged().length, "photo")} show${one ? "s" : ""} it`;
    no.textContent = `${counted(judged().length, "photo")} do${one ? "es" : ""} not`;
  };
  labelProposals();
  return element("section", { class: "proposals", id: "proposals", "aria-labelledby": "proposals-title" }, [
    element("h2", { id: "proposals-title" }, [`${counted(found.length, "photo")} look${found.length === 1 ? "s" : ""} like ${thing.name || "this thing"}: check`]),
    element("p", { class: "hint" }, ["The likeliest first. The buttons are about all of them, or about those that you tick."]),
    element("div", { class: "acts" }, [yes, no]),
    element("div", { class: "tiles" }, found.map((one, i) => makeTile(one, i, actions))),
    element("h2", {}, ["Its photos"]),
  ]);
}

function chooseOnly(refs) {
  chosen.clear();
  for (const one of tiles) if (refs.includes(one.ref)) chosen.toggle(one);
}

function chooseAll() {
  for (const one of tiles) if (!chosen.has(one.ref)) chosen.toggle(one);
}

// Save a name. Where another thing has it, the person decides: join them, or have two of one name.
async function save(thing, text, goOn = false) {
  const done = await attempt(() => feedback.name(thing.id, text).catch((error) => (error.status === 409 ? same(thing, text, error) : Promise.reject(error))), stale);
  if (!done) return;
  await showUndo();
  if (goOn) return nextThing(done.id);
  follow(done);
}

async function same(thing, text, error) {
  const wanted = text.trim().toLocaleLowerCase();
  const known = await feedback.likelyThings({ refs: [thing.pictures[0].ref], fingerprint: thing.fingerprint });
  const other = known.find((one) => one.id !== thing.id && one.name.toLocaleLowerCase() === wanted);
  const answer = await askName(`${error.message}. Is it the same thing?`, [
    ...(other ? [["join", "Yes, join them"]] : []), ["again", "No, two things of this name"]]);
  if (answer === "join") return feedback.merge(thing.id, other.id, other.name);
  return answer === "again" ? feedback.name(thing.id, text, true) : null;
}

// The largest thing that has no name yet.
async function nextThing(after) {
  const found = await attempt(() => feedback.gallery(0, 200));
  const next = found?.things.find((one) => !one.name && one.id !== after);
  location.hash = next ? next.id : "";
  if (!next) render();
}

async function join(thing) {
  const other = await chooseThing({ refs: thing.pictures.slice(0, 8).map((one) => one.ref), fingerprint: thing.fingerprint }, thing.id);
  if (!other) return;
  let name = null;
  if (thing.name && other.name && thing.name !== other.name) {
    name = await askName("Which name do both have from now on?", [[other.name, other.name], [thing.name, thing.name]]);
    if (name === null) return;
  }
  change(() => feedback.merge(thing.id, other.id, name));
}

async function change(act) {
  const done = await attempt(act, stale);
  if (!done) return;
  await showUndo();
  follow(done);
}

// Show the thing that something was done to: its id may be new.
function follow(done) {
  if (done.id && `#${done.id}` !== location.hash) location.hash = done.id;
  else render();
}

// What was undone may have made the thing: then the one that its photos are in by now is shown.
async function undone() {
  const photo = shown?.pictures[0]?.ref;
  if (shown && (await feedback.thing(shown.id).catch(() => null)) === null) {
    const still = photo && (await feedback.thing(photo).catch(() => null));
    return follow({ id: still ? still.id : "" });
  }
  render();
}

addEventListener("hashchange", render);
wireShell(undone);
attempt(async () => {
  bar = await beginStore(render);
  await render();
}, fail);
