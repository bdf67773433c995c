// The search page: the state of a search (photos, filters, order), and what a change of it does.

import * as address from "./address.js";
import * as api from "./api.js";
import { Chosen } from "./choose.js";
import { byId, counted, element, toast } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { Filters, toWhere } from "./filters.js";
import { showGallery } from "./gallery.js";
import { fileOf, pick, wireInput } from "./input.js";
import { QueryPanel } from "./query.js";
import { countBands, Results } from "./results.js";
import { wireShell } from "./shell.js";
import { StoreBar } from "./store.js";
import { Viewer } from "./viewer.js";

const FIRST = 60;
const UNASKED = { filters: [], where: "", rerank: "", least: 0, join: "mean", store: 0, view: null };
const state = { query: [], at: 0, top: FIRST, without: new Set(), ...UNASKED };
let running = null;
let searched = ""; // what the results answer
let restored = 0; // how often the page followed the history
let viewPushed = false; // the open photo is a step of the history that closing takes back

const named = () => (state.query.length ? run() : showGallery());
const chosen = new Chosen({
  changed: named, search: (matches) => ask(matches.slice(0, bar.about.limits.queries).map(fromMatch)), originals: () => bar.about.originals,
  remove: { label: "Not this", does: (_, asked) => notThis(asked) },
});

// Photos that show something else leave the results. It is kept for a photo of the store, not for one of this computer.
function notThis(asked) {
  const photo = state.query.find((one) => one.ref);
  for (const ref of asked.refs) state.without.add(ref); // the search moves away from them, too
  if (photo) return feedback.tellApart(asked, photo.ref);
  return { id: "", message: `${counted(asked.refs.length, "photo")} left out of this search` };
}
const actions = {
  chosen,
  renamed: named,
  search: (match) => ask([fromMatch(match)]),
  add: (match) => addAll([fromMatch(match)]),
  open: (i) => viewer.open(results.matches, i),
  viewed,
  about: () => bar.about,
};
const end = byId("end"); // stands behind the last result, or nowhere
const loadMore = byId("load-more");
const results = new Results(byId("grid"), actions);
const viewer = new Viewer(actions);
const bar = new StoreBar({ use: useStore, changed: photosChanged });
const filters = new Filters(byId("filters"), byId("filter-add"), (chosen) => change({ filters: chosen }));
const panel = new QueryPanel({
  boxed: (i, box) => change({ query: state.query.map((one, k) => (k === i ? { ...one, box } : one)) }, false),
  show: (i) => {
    state.at = i;
    panel.render(state);
  },
  remove: (i) => ask(state.query.filter((_, k) => k !== i)),
  pick: () => pick(false),
  join: (join) => change({ join }),
});

function fromMatch({ ref, path, thumbnail, picture }) {
  return { ref, name: path, thumbnail, picture, box: null };
}

function addAll(items) {
  const known = new Set(state.query.map((one) => one.ref).filter(Boolean));
  const fresh = items.filter((one) => !known.has(one.ref));
  const most = bar.about.limits.queries;
  if (state.query.length + fresh.length > most) toast(`A query has at most ${most} photos.`);
  else if (fresh.length) ask([...state.query, ...fresh], state.query.length);
}

// A new query starts at the top; filters and order stay, except on the way back to the start page.
function ask(query, at = 0) {
  byId("notice").hidden = true;
  state.without.clear();
  change({ query, at, ...(query.length ? {} : { ...UNASKED, store: state.store }) });
  window.scrollTo({ top: 0, behavior: "instant" });
}

// Every change of what is asked is a step of the history, so that Back undoes it; only boxes replace each other.
function change(part, step = true) {
  Object.assign(state, part, { top: FIRST, view: null });
  viewPushed = false;
  remember(step);
  render();
  run();
}

function remember(step) {
  const kept = { query: state.query.map((one) => ({ ...one })) };
  if (step) history.pushState(kept, "", address.write(state));
  else history.replaceState(kept, "", address.write(state));
}

// Closing the photo takes back the step that opening it made, so that Back never opens it again.
function viewed(match) {
  if (match) {
    const step = !state.view;
    state.view = match.ref;
    if (step) viewPushed = true;
    remember(step);
  } else if (state.view) {
    state.view = null;
    if (viewPushed) history.back();
    else remember(false);
    viewPushed = false;
  }
}

addEventListener("popstate", () => restore());

// Show what the address and the history hold.
async function restore() {
  restored += 1;
  const turn = restored;
  const asked = address.read(location.search);
  const { photos, uploaded, view, ...options } = asked;
  Object.assign(state, options, { view, top: FIRST });
  if (!view) {
    viewPushed = false;
    viewer.close();
  }
  if (asking() === searched) return view && openView();
  const before = history.state?.query ?? [];
  const kept = before.filter((one) => one.ref || fileOf(one));
  const lost = history.state?.lost ?? before.filter((one) => !kept.includes(one)).map((one) => one.name);
  try {
    const query = kept.length === photos.length + uploaded ? kept : await Promise.all(photos.map(fromAddress));
    if (turn !== restored) return; // gone on to another step meanwhile
    state.query = query;
  } catch (error) {
    state.query = [];
    render();
    searched = asking();
    return fail(error);
  }
  state.at = 0;
  history.replaceState({ query: state.query, lost }, "");
  if (bar.number !== state.store) await bar.use(state.store);
  feedback.use(bar.number);
  state.store = bar.number;
  showLost(uploaded - state.query.filter((one) => !one.ref).length, lost);
  render();
  await run();
  if (state.view) openView();
}

// What the page is asked for at this step of the history, the open photo apart.
function asking() {
  const values = new URLSearchParams(location.search);
  values.delete("view");
  return JSON.stringify([values.toString(), history.state?.query?.map(({ ref, number, box }) => [ref ?? number, box])]);
}

async function fromAddress({ ref, box }) {
  return { ...fromMatch(await api.photo(ref)), box };
}

async function openView() {
  const at = results.matches.findIndex((one) => one.ref === state.view);
  try {
    if (at >= 0) viewer.open(results.matches, at);
    else viewer.open([{ ...(await api.photo(state.view)), fingerprint: bar.store.fingerprint }], 0);
  } catch (error) {
    state.view = null;
    remember(false);
    toast(error.message);
  }
}

// Photos of a computer do not outlive the page that they were shown to.
function showLost(count, names) {
  byId("notice").hidden = !count;
  if (!count) return;
  const which = names.length === 1 ? `Your photo “${names[0]}” was` : `The ${count === 1 ? "photo" : "photos"} of this search ${count === 1 ? "was" : "were"}`;
  const filtered = state.filters.length || state.where ? " The filters are kept." : "";
  byId("notice-text").textContent = `${which} only in the page: uploads are neither stored nor part of the address. Choose ${count === 1 ? "it" : "them"} again to repeat the search.${filtered}`;
}

async function run() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  searched = asking();
  if (!state.query.length) return start(signal);
  const slow = setTimeout(() => results.waiting(), 250);
  document.body.setAttribute("aria-busy", "true");
  const options = {
    store: bar.number, top: state.top, where: toWhere(state.filters, bar.columns, state.where), rerank: state.rerank,
    min_score: state.least / 100, aggregate: state.join,
  };
  try {
    const query = state.query.map((one) => ({ ...one, file: fileOf(one) }));
    const unlike = [...state.without].filter((ref) => ref.startsWith(`${bar.number}:`)).slice(-bar.about.limits.queries);
    const answer = await api.search(query, options, unlike, signal);
    clearTimeout(slow);
    for (const match of answer.matches) match.fingerprint = answer.fingerprint;
    show(answer);
    bar.refresh(false);
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  } finally {
    clearTimeout(slow);
    if (!signal.aborted) document.body.removeAttribute("aria-busy");
  }
}

function show(answer) {
  const matches = answer.matches.filter((one) => !state.without.has(one.ref));
  showMistake("");
  const more = answer.matches.length >= state.top && state.top < bar.about.limits.top;
  loadMore.hidden = !more;
  results.show(matches, end);
  const counts = countBands(matches);
  const open = more && !counts.unlikely ? ", and more" : "";
  const parts = [counts.sure ? `${counts.sure} sure` : "Nothing sure", ...["likely", "possible"].filter((one) => counts[one]).map((one) => `${counts[one]} ${one}`)];
  const text = `${parts.join(", ")}${open}`;
  byId("status").replaceChildren(element("b", {}, [text]), ` in ${answer.milliseconds.toFixed(0)} ms`);
}

// An error takes the place of the results: what is left from before would answer another question.
function fail(error) {
  const filtered = error.status === 400 && (state.where || state.filters.length);
  showMistake(filtered && state.where ? error.message : "");
  const again = ["Try again", bar.about ? run : () => location.reload()];
  const remove = ["Remove the filters", () => change({ filters: [], where: "" })];
  const [title, actions] = filtered ? ["The filter does not work", state.where ? [["Correct it", writeFilter], remove] : [remove]]
    : { 0: ["The server does not answer", [again]], 404: ["This photo is no longer there", [["Start again", () => ask([])]]],
      413: ["This photo is too large", []], 415: ["This file is not a photo", [["Choose another", () => pick(true)]]], 503: ["The server is busy", [again]],
    }[error.status] ?? ["That did not work", [again]];
  results.message(title, error.message, actions, "problem");
  byId("status").textContent = "";
}

function writeFilter() {
  byId("options").open = byId("more").open = true;
  byId("where").focus();
}

function showMistake(text) {
  byId("where-error").textContent = text;
  byId("where-error").hidden = !text;
  byId("where").setAttribute("aria-invalid", String(Boolean(text)));
  if (text && !narrow()) byId("more").open = true;
}

async function start(signal) {
  try {
    const photos = await api.sample(bar.number, Math.floor(Date.now() / 3.6e6) % 1e6);
    if (signal.aborted) return;
    for (const one of photos) one.fingerprint = bar.store.fingerprint;
    document.body.removeAttribute("aria-busy");
    byId("status").textContent = photos.length ? `Or start from one of these, of ${counted(bar.store.pictures, "photo")} in all` : "This store is empty: index some photos first.";
    results.showSample(photos);
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
}

// Photos were indexed or dropped while the page was open.
function photosChanged() {
  filters.show(state.filters, bar.columns);
  if (!state.query.length) return run();
  if (byId("search-again")) return;
  const again = element("button", { class: "link", id: "search-again" }, ["The collection has changed: search again"]);
  again.addEventListener("click", run);
  byId("status").append(" · ", again);
}

async function useStore(number) {
  await bar.use(number);
  feedback.use(bar.number);
  showGallery();
  change({ store: bar.number }, false);
}

function render() {
  document.title = state.query.length ? `${state.query[0].name} · insclr` : "InsCLR search";
  byId("main").classList.toggle("empty", !state.query.length);
  panel.render(state);
  filters.show(state.filters, bar.columns);
  const active = state.filters.length + (state.where.trim() ? 1 : 0);
  byId("filter-count").textContent = active || "";
  byId("where").value = state.where;
  byId("rerank").value = state.rerank;
  byId("min-score").value = state.least;
  byId("min-shown").textContent = `${state.least} %`;
  byId("columns").textContent = `Columns: ${["path", ...bar.store.columns].join(", ")}`;
}

const narrow = () => matchMedia("(max-width: 860px)").matches;

function wire() {
  byId("home").addEventListener("click", (event) => {
    event.preventDefault();
    ask([]);
  });
  for (const id of ["pick", "notice-pick"]) byId(id).addEventListener("click", () => pick(true));
  loadMore.addEventListener("click", () => {
    state.top = Math.min(bar.about.limits.top, state.top * 3);
    run();
  });
  byId("where").addEventListener("change", () => change({ where: byId("where").value }));
  byId("rerank").addEventListener("change", () => change({ rerank: byId("rerank").value }));
  byId("min-score").addEventListener("input", () => {
    byId("min-shown").textContent = `${byId("min-score").value} %`;
  });
  byId("min-score").addEventListener("change", () => change({ least: Number(byId("min-score").value) }));
  wireInput((items, fresh) => (fresh ? ask(items) : addAll(items)), () => bar.about.limits);
  addEventListener("keydown", key);
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "u") pick(true);
  else if (event.key === "b" && bar.about.stores.length > 1) useStore(1 - bar.number);
  else if (event.key === "/" && state.query.length) {
    writeFilter();
  } else if (event.key.startsWith("Arrow") && document.activeElement === document.body) results.focus(0);
  else return;
  event.preventDefault();
}

async function begin() {
  wireShell(() => {
    state.without.clear(); // "not this" may be what was undone
    named();
  });
  wire();
  byId("options").open = !narrow();
  try {
    await bar.begin(address.read(location.search).store);
  } catch (error) {
    return fail(error);
  }
  for (const name of bar.about.rerankers) byId("rerank").append(element("option", { value: name }, [name]));
  feedback.use(bar.number);
  showGallery();
  searched = null;
  await restore();
}

begin();
