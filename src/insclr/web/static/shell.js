// What every page has: light or dark, help, dialogs that close, the store at hand with its before/after switch, undo.

import { byId, toast } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { StoreBar } from "./store.js";

export function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;

// Do something for the person; an error becomes a message, and the result null.
export async function attempt(work, failed = () => {}) {
  try {
    return await work();
  } catch (error) {
    toast(error.message);
    failed(error);
    return null;
  }
}

// Wire the header and the dialogs. `undone(message)` is called when something was taken back.
export function wireShell(undone) {
  byId("theme").addEventListener("click", toggleTheme);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
    });
  }
  byId("undo").addEventListener("click", async () => {
    const done = await attempt(() => feedback.undo());
    if (!done) return;
    toast(`Taken back: ${done.message}`);
    await showUndo();
    undone?.(done);
  });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    if (event.key === "d") toggleTheme();
    else if (event.key === "?") byId("help").showModal();
    else return;
    event.preventDefault();
  });
  return showUndo();
}

// Let the button name what the next undo takes back.
export async function showUndo() {
  const found = await feedback.history(0, 1).catch(() => null);
  const last = found?.steps.find((one) => !one.undone);
  byId("undo").disabled = !last;
  byId("undo").title = last ? `Take back: ${last.message}` : "Nothing to take back";
}

// Go to a search from these photos of a store.
export function searchFrom(photos, store) {
  location.href = `./?${photos.slice(0, 16).map((one) => `photo=${one.ref}`).join("&")}${store ? `&store=${store}` : ""}`;
}

const storeOf = () => (new URLSearchParams(location.search).get("store") === "1" ? 1 : 0);

// The store bar of a page other than search: its switch shows the same page of the other model.
export async function beginStore(shown) {
  const bar = new StoreBar({
    use: async (number) => {
      await bar.use(number);
      feedback.use(bar.number);
      const values = new URLSearchParams(location.search);
      if (bar.number) values.set("store", bar.number);
      else values.delete("store");
      const query = values.toString();
      history.replaceState(history.state, "", (query ? `?${query}` : location.pathname) + location.hash);
      shown();
    },
    changed: shown,
  });
  await bar.begin(storeOf());
  feedback.use(bar.number);
  return bar;
}
