// The page: what is asked (query pictures and options), and what follows from a change of it.

import * as api from "./api.js";
import { BoxEditor } from "./box.js";
import { byId, element, toast } from "./dom.js";
import { Results } from "./results.js";
import { Viewer } from "./viewer.js";

const FIRST = 60;
const state = { query: [], at: 0, store: 0, join: "mean", top: FIRST, about: null };
const sources = new Map(); // pictures from this computer, by number: history entries can only hold plain values
let running = null;

const actions = {
  search: (match) => ask([fromMatch(match)]),
  add: (match) => addAll([fromMatch(match)]),
  open: (i) => viewer.open(results.matches, i),
};
const results = new Results(byId("grid"), actions);
const viewer = new Viewer(actions);
const editor = new BoxEditor(byId("canvas"), byId("shown"), byId("box"), (box) => {
  state.query[state.at].box = box;
  changed();
});

function fromMatch({ ref, path, thumbnail, picture }) {
  return { ref, name: path, thumbnail, picture, box: null };
}

function fromFile(file) {
  const number = sources.size;
  const address = URL.createObjectURL(file);
  sources.set(number, file);
  return { number, name: file.name || "pasted picture", thumbnail: address, picture: address, box: null };
}

function addFiles(files, fresh) {
  const pictures = [...files].filter((file) => file.type.startsWith("image/") || !file.type);
  if (!pictures.length) return toast("That is not a picture.");
  const large = pictures.find((file) => file.size > state.about.limits.bytes);
  if (large) return toast(`${large.name} is larger than ${Math.round(state.about.limits.bytes / 1e6)} MB.`);
  const items = pictures.map(fromFile);
  if (fresh) ask(items);
  else addAll(items);
}

function addAll(items) {
  const known = new Set(state.query.map((one) => one.ref).filter(Boolean));
  const fresh = items.filter((one) => !known.has(one.ref));
  if (state.query.length + fresh.length > state.about.limits.queries) return toast(`A query has at most ${state.about.limits.queries} pictures.`);
  if (fresh.length) ask([...state.query, ...fresh], state.query.length);
}

// A new query is a new step of the browser's history, so Back leads to the query before.
function ask(query, at = 0) {
  Object.assign(state, { query, at, top: FIRST });
  history.pushState(remembered(), "");
  window.scrollTo({ top: 0, behavior: "instant" });
  render();
  run();
}

function changed() {
  history.replaceState(remembered(), "");
  renderQuery();
  run();
}

const remembered = () => ({ query: state.query.map((one) => ({ ...one })), at: state.at, join: state.join });

addEventListener("popstate", (event) => {
  const kept = event.state ?? { query: [], at: 0, join: "mean" };
  const query = kept.query.filter((one) => one.ref || sources.has(one.number));
  Object.assign(state, { ...kept, query, at: 0, top: FIRST });
  render();
  run();
});

async function run() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  if (!state.query.length) return start(signal);
  const slow = setTimeout(() => results.waiting(), 250);
  document.body.setAttribute("aria-busy", "true");
  const options = {
    store: state.store, top: state.top, where: byId("where").value, rerank: byId("rerank").value,
    min_score: byId("min-score").value / 100, aggregate: state.join,
  };
  try {
    const query = state.query.map((one) => ({ ...one, file: sources.get(one.number) }));
    const answer = await api.search(query, options, signal);
    clearTimeout(slow);
    results.show(answer);
    showStatus(answer);
  } catch (error) {
    if (error.name === "AbortError") return;
    results.show({ matches: [], likely: 0 });
    byId("status").textContent = error.message;
    toast(error.message);
  } finally {
    clearTimeout(slow);
    if (!signal.aborted) document.body.removeAttribute("aria-busy");
  }
}

async function start(signal) {
  byId("load-more").hidden = true;
  try {
    const pictures = await api.sample(state.store, Math.floor(Date.now() / 3.6e6) % 1e6);
    if (signal.aborted) return;
    byId("status").textContent = pictures.length ? "or start from one of these" : "This store is empty: index some pictures first.";
    results.showSample(pictures);
  } catch (error) {
    toast(error.message);
  }
}

function showStatus(answer) {
  const { likely, matches } = answer;
  const found = likely === 1 ? "1 likely match" : `${likely} likely matches`;
  const all = likely === matches.length && matches.length === state.top ? `${found} or more` : found;
  byId("status").replaceChildren(element("b", {}, [all]), ` in ${answer.milliseconds.toFixed(0)} ms`);
  const more = matches.length >= state.top && state.top < state.about.limits.top;
  byId("load-more").hidden = !more;
}

function render() {
  const empty = !state.query.length;
  byId("main").classList.toggle("empty", empty);
  byId("stage").hidden = empty;
  byId("panel").hidden = empty;
  renderQuery();
}

function renderQuery() {
  const shown = state.query[state.at];
  if (shown) {
    if (byId("shown").getAttribute("src") !== shown.picture) byId("shown").src = shown.picture;
    byId("stage-name").textContent = shown.name;
    byId("stage-name").title = shown.name;
    byId("clear-box").hidden = !shown.box;
    byId("box-hint").hidden = Boolean(shown.box);
    editor.set(shown.box);
  }
  const items = state.query.map((item, i) => {
    const select = element("button", { "aria-pressed": String(i === state.at), "aria-label": `Show ${item.name}` }, [element("img", { src: item.thumbnail, alt: "" })]);
    select.addEventListener("click", () => {
      state.at = i;
      renderQuery();
    });
    const remove = element("button", { class: "remove", "aria-label": `Remove ${item.name}`, title: "Remove" }, ["✕"]);
    remove.addEventListener("click", () => ask(state.query.filter((_, k) => k !== i)));
    return element("li", {}, item.box ? [select, element("span", { class: "part" }), remove] : [select, remove]);
  });
  const add = element("button", { "aria-label": "Add a photo to the query", title: "Add a photo" }, ["+"]);
  add.addEventListener("click", () => pick(false));
  byId("set").replaceChildren(...items, element("li", { class: "add" }, [add]));
  byId("join-field").hidden = state.query.length < 2;
  for (const one of document.querySelectorAll("[data-join]")) one.setAttribute("aria-pressed", String(one.dataset.join === state.join));
}

function renderStore() {
  const store = state.about.stores[state.store];
  byId("about").textContent = `${store.pictures.toLocaleString("en")} pictures · ${store.name}`;
  byId("about").title = `model ${store.model}, cut-off at cosine ${store.cutoff}`;
  byId("columns").replaceChildren("Columns: ", ...["path", ...store.columns].flatMap((name) => {
    const code = element("code", {}, [name]);
    code.addEventListener("click", () => {
      const quoted = /^\w+$/.test(name) ? name : `"${name}"`;
      byId("where").value = `${byId("where").value} ${quoted} `.trimStart();
      byId("where").focus();
    });
    return [code, " "];
  }));
  const many = state.about.stores.length > 1;
  byId("compare").hidden = !many;
  if (!many) return;
  // "Before" stands left of "After": the second store is the older one.
  byId("compare").replaceChildren(...[...state.about.stores].reverse().map((one) => {
    const button = element("button", { "aria-pressed": String(one.number === state.store), title: `${one.model} (b)` }, [one.title]);
    button.addEventListener("click", () => useStore(one.number));
    return button;
  }));
}

function useStore(number) {
  state.store = number;
  renderStore();
  run();
}

let fresh = true;
function pick(asNew) {
  fresh = asNew;
  byId("file").click();
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

function wire() {
  byId("home").addEventListener("click", () => ask([]));
  byId("pick").addEventListener("click", () => pick(true));
  byId("file").addEventListener("change", (event) => {
    if (event.target.files.length) addFiles(event.target.files, fresh);
    event.target.value = "";
  });
  byId("clear-box").addEventListener("click", () => {
    state.query[state.at].box = null;
    changed();
  });
  byId("load-more").addEventListener("click", () => {
    state.top = Math.min(state.about.limits.top, state.top * 3);
    run();
  });
  byId("theme").addEventListener("click", toggleTheme);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  for (const one of document.querySelectorAll("[data-join]")) {
    one.addEventListener("click", () => {
      state.join = one.dataset.join;
      changed();
    });
  }
  byId("where").addEventListener("change", run);
  byId("rerank").addEventListener("change", run);
  byId("min-score").addEventListener("input", () => {
    byId("min-shown").textContent = `${byId("min-score").value} %`;
  });
  byId("min-score").addEventListener("change", run);
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
    });
  }
}

function wireDropAndPaste() {
  let depth = 0;
  const veil = (shown) => {
    byId("veil").hidden = !shown;
  };
  addEventListener("dragenter", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    depth += 1;
    veil(true);
  });
  addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) veil(false);
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    veil(false);
    if (event.dataTransfer.files.length) addFiles(event.dataTransfer.files, !event.shiftKey);
  });
  addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) addFiles(event.clipboardData.files, true);
  });
}

function wireKeys() {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    if (event.key === "u") pick(true);
    else if (event.key === "d") toggleTheme();
    else if (event.key === "?") byId("help").showModal();
    else if (event.key === "b" && state.about.stores.length > 1) useStore(1 - state.store);
    else if (event.key === "/" && state.query.length) {
      byId("more").open = true;
      byId("where").focus();
    } else if (event.key.startsWith("Arrow") && document.activeElement === document.body) results.focus(0);
    else return;
    event.preventDefault();
  });
}

async function begin() {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  wire();
  wireDropAndPaste();
  wireKeys();
  try {
    state.about = await api.about();
  } catch (error) {
    byId("status").textContent = error.message;
    return;
  }
  for (const name of state.about.rerankers) byId("rerank").append(element("option", { value: name }, [name]));
  // Pictures from this computer do not outlive the page: a reload starts again.
  history.replaceState(remembered(), "");
  renderStore();
  render();
  run();
}

begin();
