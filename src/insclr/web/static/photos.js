// All photos of the store, or those that filters leave, in an order with headings; each opens large and can be chosen.

import { Chosen } from "./choose.js";
import { byId, counted, element } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { Filters, toWhere } from "./filters.js";
import { attempt, beginStore, searchFrom, wireShell } from "./shell.js";
import { makeTile, TileKeys } from "./tiles.js";
import { Viewer } from "./viewer.js";

const PAGE = 120;
const HINTS = {
  all: "", named: "These photos have a name.", unnamed: "Nobody has named these yet.",
  "by-score": "These joined a thing by their score. Tick those that are right and add them to their thing; take the others out.",
  new: "These match nothing yet: new things, or the only photo of one. Tick photos of one thing and name them, or add them to a thing.",
};
const CHOICES = ["show", "order", "fit"];
const state = { show: "all", order: "path", fit: "", filters: [], offset: 0 };
let bar = null;
let listed = { photos: [], headings: [], total: 0 };
let turn = 0;

const search = (photos) => searchFrom(photos, bar.number);
const chosen = new Chosen({
  changed: () => load(0, listed.photos.length), search, originals: () => bar.about.originals,
  remove: { label: "Take out of its thing", does: (_, asked) => feedback.removePhotos(asked) },
});
const actions = { chosen, search: (match) => search([match]), open: (match) => viewer.open(listed.photos, listed.photos.indexOf(match)), about: () => bar.about, renamed: () => load(0, listed.photos.length) };
const viewer = new Viewer(actions);
const filters = new Filters(byId("filters"), byId("filter-add"), (filters) => change({ filters }));
new TileKeys(byId("grid"), actions, (ref) => listed.photos.find((one) => one.ref === ref));

function change(part) {
  Object.assign(state, part, { offset: 0, ...("offset" in part ? part : {}) });
  const values = new URLSearchParams();
  for (const name of CHOICES) if (state[name] !== byId(name).options[0].value) values.set(name, state[name]);
  for (const { column, sign, value } of state.filters) values.append(`only.${column}`, `${sign}:${value}`);
  if (bar.number) values.set("store", bar.number);
  const query = values.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
  load(state.offset, PAGE);
}

// Show `count` photos from `offset` on.
async function load(offset, count) {
  turn += 1;
  const mine = turn;
  render();
  if (!listed.photos.length) byId("grid").replaceChildren(element("div", { class: "tiles" }, Array.from({ length: 18 }, () => element("div", { class: "tile wait" }))));
  const found = await attempt(() => ask(offset, Math.min(500, Math.max(PAGE, count))), (error) => mine === turn && fail(error));
  if (!found || mine !== turn) return;
  state.offset = offset;
  listed = found;
  paint();
}

async function ask(offset, count) {
  const [from, to] = state.fit ? state.fit.split("-") : [0, 1];
  const found = await feedback.photos({
    show: state.show, order: state.order, fit_from: from, fit_to: to, where: toWhere(state.filters, bar.columns, ""), offset, count,
  });
  for (const one of found.photos) one.fingerprint = found.fingerprint;
  return found;
}

function paint() {
  const parts = [];
  const headings = new Map(listed.headings.map((one) => [one.offset - state.offset, one.title]));
  listed.photos.forEach((one, i) => {
    if (headings.has(i) && listed.headings.length > 1) parts.push(element("h2", { class: "month" }, [headings.get(i)]));
    parts.push(makeTile(one, i, actions));
  });
  byId("photos-title").textContent = state.show === "new" ? `New: ${counted(listed.total, "photo")} that match nothing` : counted(listed.total, "photo");
  const sure = state.fit || state.order === "fit" ? "The number is how likely a photo shows the thing that it is in, by its most similar photos there." : "";
  byId("photos-hint").textContent = listed.total ? [HINTS[state.show], sure].filter(Boolean).join(" ") : "";
  byId("grid").replaceChildren(listed.total ? element("div", { class: "tiles" }, parts) : empty());
  byId("load-more").hidden = state.offset + listed.photos.length >= listed.total;
  byId("jump-label").hidden = listed.headings.length < 2;
  byId("jump").replaceChildren(...listed.headings.map((one) => element("option", { value: one.offset }, [one.title])));
  byId("jump").value = listed.headings.findLast((one) => one.offset <= state.offset)?.offset ?? 0;
}

function empty() {
  const filtered = state.filters.length || state.fit;
  const text = filtered ? "No photo meets the filters." : state.show === "all" ? "This store is empty: index some photos first." : "There are none.";
  const all = element("button", {}, ["Show all photos"]);
  all.addEventListener("click", () => change({ show: "all", fit: "", filters: [] }));
  return element("div", { class: "none", role: "note" }, [element("h2", {}, ["No photos"]), element("p", {}, [text]), element("div", { class: "actions" }, state.show === "all" && !filtered ? [] : [all])]);
}

function fail(error) {
  const again = element("button", {}, ["Try again"]);
  again.addEventListener("click", () => load(state.offset, PAGE));
  listed = { photos: [], headings: [], total: 0 };
  byId("grid").replaceChildren(element("div", { class: "problem", role: "alert" }, [element("h2", {}, ["The photos cannot be listed"]), element("p", {}, [error.message]), element("div", { class: "actions" }, [again])]));
  byId("load-more").hidden = true;
}

function render() {
  for (const name of CHOICES) byId(name).value = state[name];
  filters.show(state.filters, bar.columns);
}

async function begin() {
  wireShell(() => load(state.offset, listed.photos.length));
  const values = new URLSearchParams(location.search);
  for (const name of CHOICES) if ([...byId(name).options].some((one) => one.value === values.get(name))) state[name] = values.get(name);
  state.filters = [...values].filter(([name]) => name.startsWith("only.")).map(([name, text]) => {
    const [, sign, value] = /^([a-z-]+):([^]*)$/.exec(text) ?? [];
    return { column: name.slice(5), sign, value };
  }).filter((one) => one.sign);
  for (const name of CHOICES) byId(name).addEventListener("change", () => change({ [name]: byId(name).value }));
  byId("jump").addEventListener("change", () => {
    window.scrollTo({ top: 0 });
    change({ offset: Number(byId("jump").value) });
  });
  byId("load-more").addEventListener("click", async () => {
    const next = await attempt(() => ask(state.offset + listed.photos.length, PAGE));
    if (!next) return;
    listed = { ...next, photos: [...listed.photos, ...next.photos] };
    paint();
  });
  bar = await attempt(() => beginStore(() => load(0, PAGE)), fail);
  if (bar) load(0, PAGE);
}

begin();
