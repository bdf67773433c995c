// The page of all things, and of one thing: name it, take photos out, split it, join it with another, hide it.

import { byId, element, toast } from "./dom.js";
import { card, photos } from "./thing_cards.js";
import * as feedback from "./feedback_api.js";

const PAGE = 60;
let shown = null; // the thing on the page
let showsHidden = false;

const button = (text, does, attributes = {}) => {
  const made = element("button", attributes, [text]);
  made.addEventListener("click", does);
  return made;
};

async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    toast(error.message);
    if (error.status === 409) render(); // a new model's photos
    return null;
  }
}

async function render() {
  const id = location.hash.slice(1);
  await attempt(() => (id ? renderThing(id) : renderAll()));
}

async function renderAll() {
  shown = null;
  const found = await feedback.gallery(0, PAGE, showsHidden);
  const cards = element("div", { class: "cards" }, found.things.map(card));
  const more = button("Show more", () => attempt(async () => {
    const next = await feedback.gallery(cards.children.length, PAGE, showsHidden);
    cards.append(...next.things.map(card));
    more.hidden = cards.children.length >= next.total;
  }));
  more.hidden = cards.children.length >= found.total;
  const hidden = button(showsHidden ? "Leave hidden ones out" : "Show hidden ones", () => { showsHidden = !showsHidden; render(); }, { class: "link" });
  const parts = [element("h1", {}, [`${found.total} things`]), element("p", { class: "hint" }, [
    "Photos that look like one thing, the most first. Open one to name it or to put it right. ", hidden])];
  if (!found.total) parts.push(element("p", {}, ["No photos look alike here."]));
  parts.push(cards, more);
  if (found.alone) parts.push(await renderAlone(found.alone));
  byId("page").replaceChildren(...parts);
  showUndo(found.undo);
}

async function renderAlone(count) {
  const pictures = await feedback.alone();
  const tiles = pictures.map((one) => element("img", { src: one.thumbnail, alt: one.path, title: one.path, loading: "lazy" }));
  return element("section", { class: "alone" }, [
    element("h2", {}, [`New: ${photos(count)} that match nothing`]),
    element("p", { class: "hint" }, ["New things, or the only photo of one. Adding more photos of them brings them together."]),
    element("div", { class: "strip" }, tiles),
  ]);
}

async function renderThing(id) {
  const thing = await feedback.thing(id);
  shown = thing;
  const name = element("input", { id: "name", type: "text", maxlength: "120", placeholder: "What is this?", "aria-label": "Name", autocomplete: "off" });
  name.value = thing.name;
  const form = element("form", { class: "naming" }, [name, element("button", { class: "primary" }, ["Save the name"])]);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change(() => feedback.name(thing.id, name.value));
  });
  const tiles = thing.pictures.map(photoTile);
  const grid = element("div", { class: "tiles", id: "photos" }, tiles);
  const acts = element("div", { class: "acts", id: "acts" }, [
    button("Not this thing", () => chosen((refs) => feedback.remove(thing, refs)), { id: "remove", disabled: "" }),
    button("A new thing", () => chosen((refs) => feedback.split(thing, refs, "")), { id: "split", disabled: "" }),
    button("Join with …", () => chooseOther(thing), { id: "merge" }),
    button(thing.hidden ? "Show again" : "Hide", () => change(() => feedback.hide(thing.id, !thing.hidden)), { id: "hide" }),
  ]);
  const facts = [photos(thing.photos)];
  if (thing.confirmed && thing.confirmed < thing.photos) facts.push(`${thing.photos - thing.confirmed} joined by their score`);
  if (thing.uncertain) facts.push("uncertain: these may be several things");
  byId("page").replaceChildren(
    element("p", {}, [element("a", { href: "things" }, ["All things"])]),
    form,
    element("p", { class: "hint", id: "facts" }, [facts.join(" · ")]),
    element("p", { class: "hint" }, ["Tap photos to choose them."]),
    acts,
    grid,
  );
  const all = await feedback.gallery(0, 1);
  showUndo(all.undo);
}

function photoTile(picture) {
  const tile = button("", () => {
    tile.setAttribute("aria-pressed", tile.getAttribute("aria-pressed") !== "true");
    const some = document.querySelectorAll('#photos [aria-pressed="true"]').length;
    for (const id of ["remove", "split"]) byId(id).disabled = !some;
  }, { class: "pick", "aria-pressed": "false", "data-ref": picture.ref, title: picture.path, "aria-label": picture.path });
  tile.append(element("img", { src: picture.thumbnail, alt: "", loading: "lazy" }));
  if (!picture.confirmed && shown.confirmed) tile.append(element("span", { class: "doubt" }, ["by score"]));
  return tile;
}

function chosen(act) {
  const refs = [...document.querySelectorAll('#photos [aria-pressed="true"]')].map((one) => one.dataset.ref);
  if (refs.length) change(() => act(refs));
}

async function chooseOther(thing) {
  const found = await attempt(() => feedback.gallery(0, 200));
  if (!found) return;
  const others = found.things.filter((one) => one.id !== thing.id).map((one) => {
    const made = card(one);
    made.addEventListener("click", (event) => {
      event.preventDefault();
      dialog.close();
      change(() => feedback.merge(thing.id, one.id));
    });
    return made;
  });
  const dialog = element("dialog", { class: "choose", "aria-label": "Which thing is it?" }, [
    element("h2", {}, ["Which thing is it?"]), element("div", { class: "cards" }, others)]);
  dialog.append(button("Cancel", () => dialog.close()));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

async function change(act) {
  const done = await attempt(act);
  if (!done) return;
  if (done.id && `#${done.id}` !== location.hash) location.hash = done.id;
  else render();
}

function showUndo(what) {
  byId("undo").disabled = !what;
  byId("undo").title = what ? `Take back: ${what}` : "";
}

byId("undo").addEventListener("click", async () => {
  const done = await attempt(() => feedback.undo());
  if (!done) return;
  toast(`Taken back: ${done.message}`);
  if (shown && (await feedback.thing(shown.id).catch(() => null)) === null) location.hash = "";
  render();
});
addEventListener("hashchange", render);
render();
