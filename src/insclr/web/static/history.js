// The steps that people made, with a way back to each; names as a table out and in.

import { readBlob, readJson } from "./api.js";
import { save } from "./choose.js";
import { byId, counted, element, toast } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { attempt, beginStore, showUndo, wireShell } from "./shell.js";

const PAGE = 50;
let shown = PAGE;

async function load() {
  const found = await attempt(() => feedback.history(0, Math.min(200, shown)), (error) => {
    const again = element("button", {}, ["Try again"]);
    again.addEventListener("click", load);
    byId("steps").replaceChildren(element("div", { class: "problem", role: "alert" }, [element("p", {}, [error.message]), again]));
  });
  if (!found) return;
  const { steps } = found;
  const first = steps.findIndex((one) => !one.undone);
  byId("steps").replaceChildren(...(steps.length ? steps.map((one, i) => step(one, i === first)) : [
    element("p", { class: "none" }, ["Nothing yet. Name a thing, take a photo out or answer a question, and it stands here."])]));
  byId("load-more").hidden = steps.length >= found.total || shown >= 200;
}

function step(one, newest) {
  const when = element("time", { datetime: one.at }, [one.at ? new Date(one.at).toLocaleString() : ""]);
  const button = element("button", {}, [one.undone ? "Do it again" : newest ? "Undo" : "Go back to here"]);
  button.setAttribute("aria-label", `${button.textContent}: ${one.message}`);
  button.addEventListener("click", () => act(one.undone ? () => feedback.doAgain(one.id) : newest ? () => feedback.undo(one.id) : () => feedback.goBack(one.id)));
  return element("div", { class: `step${one.undone ? " undone" : ""}`, "data-step": one.id }, [when, element("p", {}, [one.message]), button]);
}

async function act(work) {
  const done = await attempt(work);
  if (!done) return;
  toast(done.message);
  await showUndo();
  load();
}

byId("load-more").addEventListener("click", () => {
  shown += PAGE;
  load();
});
byId("export").addEventListener("click", async () => {
  const content = await attempt(() => readBlob(fetch(feedback.namesAddress())));
  if (content) save(content, "names.csv");
});
byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  const done = await attempt(() => readJson(fetch(feedback.namesAddress(), { method: "POST", headers: { "content-type": "text/csv" }, body: file })));
  if (!done) return;
  const unknown = done.unknown.length ? ` ${counted(done.unknown.length, "photo")} of the table ${done.unknown.length === 1 ? "is" : "are"} not in the store: ${done.unknown.slice(0, 5).join(", ")}${done.unknown.length > 5 ? " …" : ""}` : "";
  byId("import-report").textContent = `${counted(done.named, "photo")} named.${unknown}`;
  await showUndo();
  load();
});

wireShell(load);
attempt(() => beginStore(load)).then(load);
