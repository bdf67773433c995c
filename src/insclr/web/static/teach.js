// The teaching page: one photo and twelve candidates at a time, learning from the answers, and the proof.

import { byId, element, toast } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { beginStore, searchFrom, showUndo, wireShell } from "./shell.js";
import { ENLARGE, icon } from "./tiles.js";
import { Viewer } from "./viewer.js";

let bar = null;
let screen = null;
let busy = false;
let pair = null; // the result that is judged

async function attempt(work) {
  if (busy) return null;
  busy = true;
  try {
    return await work();
  } catch (error) {
    toast(error.message);
    return null;
  } finally {
    busy = false;
  }
}

// The next to show after an answer; where a new model is served by now, the server's sentence and what that one asks.
const nextOf = (sent, anew) => sent.catch((error) => {
  if (error.status !== 409) throw error;
  toast(error.message);
  return anew();
});

function show(next) {
  if (!next) return;
  screen = next;
  const asks = Boolean(next.query);
  for (const one of document.querySelectorAll(".question, .answer")) one.hidden = !asks;
  document.querySelector("#asking h1").textContent = asks ? "Which of these show the same thing?" : "There is nothing left to ask.";
  showUndo();
  byId("count").textContent = `${next.screens} screen${next.screens === 1 ? "" : "s"} answered`;
  if (asks) {
    byId("query").src = next.query.picture;
    byId("query").title = next.query.path;
    byId("candidates").replaceChildren(...next.candidates.map(candidate));
  }
  showConflicts(next.contradictions);
  updateDone();
}

function candidate(picture) {
  const made = element("button", { class: "pick", "aria-pressed": "false", "data-ref": picture.ref, title: picture.path, "aria-label": picture.path }, [
    element("img", { src: picture.thumbnail, alt: "" })]);
  made.addEventListener("click", () => {
    made.setAttribute("aria-pressed", made.getAttribute("aria-pressed") !== "true");
    updateDone();
  });
  const enlarge = element("button", { class: "enlarge", "aria-label": `See ${picture.path} large`, title: "See it large" }, [icon(ENLARGE)]);
  enlarge.addEventListener("click", () => {
    const photos = [screen.query, ...screen.candidates].map((one) => ({ ...one, fingerprint: screen.fingerprint }));
    viewer.open(photos, photos.findIndex((one) => one.ref === picture.ref));
  });
  return element("div", { class: "candidate" }, [made, enlarge]);
}

const viewer = new Viewer({
  search: (match) => searchFrom([match], bar.number), about: () => bar.about, renamed: () => attempt(feedback.screen).then(show),
});
const tapped = () => [...document.querySelectorAll('#candidates [aria-pressed="true"]')].map((one) => one.dataset.ref);

function updateDone() {
  const count = tapped().length;
  byId("done").disabled = !count;
  byId("done").textContent = count ? `These ${count}` : "Those I tapped";
}

const refs = () => screen.candidates.map((one) => one.ref);

async function give(same) {
  if (!screen?.query) return;
  const different = refs().filter((one) => !same.includes(one));
  show(await attempt(() => nextOf(feedback.answer(screen, same, different), feedback.screen)));
}

async function skip() {
  if (screen?.query) show(await attempt(() => nextOf(feedback.skip(screen), feedback.screen)));
}

function showConflicts(found) {
  const place = byId("conflicts");
  place.hidden = !found.length;
  const small = (picture) => element("img", { src: picture?.thumbnail ?? "", alt: picture?.path ?? "a photo that is gone" });
  const row = (one, label) => {
    const undo = element("button", {}, ["Take back"]);
    undo.addEventListener("click", async () => {
      if (await attempt(() => feedback.undo(one.entry))) show(await attempt(feedback.screen));
    });
    return element("div", { class: "pair" }, [small(one.one), small(one.other), element("p", {}, [label, one.same ? "the same thing" : "different things"]), undo]);
  };
  place.replaceChildren(element("h2", {}, ["These answers contradict each other"]), ...found.map((each) => element("details", {}, [
    element("summary", {}, [`An answer does not fit ${each.chain.length} earlier one${each.chain.length === 1 ? "" : "s"}`]),
    element("p", { class: "hint" }, [each.asked_again ? "One of them is probably a slip: they are set aside and asked again." : "The earlier ones hold until you take one back."]),
    row(each.answer, "your answer: "),
    ...each.chain.map((one) => row(one, "an earlier answer: ")),
  ])));
}

function runningText({ step, steps, doing, left, seconds }) {
  const rest = left === null ? `${Math.round(seconds)} s so far` : `about ${left < 90 ? `${Math.max(1, Math.round(left))} s` : `${Math.round(left / 60)} minutes`} left`;
  return step ? `Step ${step} of ${steps}: ${doing} · ${rest}` : `Learning · ${rest}`;
}

async function watchLearning() {
  const state = await feedback.learning().catch(() => null);
  if (!state) return setTimeout(watchLearning, 2000);
  const texts = {
    idle: state.message, running: runningText(state),
    done: `${state.message}. Search now uses the new model; the switch on the search page shows before and after.`,
    failed: `It did not work: ${state.message}`,
  };
  byId("learning").textContent = texts[state.state];
  byId("learning").dataset.state = state.state;
  byId("learn").disabled = state.state === "running";
  byId("stop-learning").hidden = state.state !== "running";
  if (state.state === "running") setTimeout(watchLearning, 700);
  else if (state.state === "done" && byId("learn").dataset.asked) {
    delete byId("learn").dataset.asked;
    show(await attempt(feedback.screen)); // asked anew, from the better model
    showProof(await feedback.sample().catch(() => null));
  }
}

byId("stop-learning").addEventListener("click", () => attempt(feedback.stopLearning));
byId("learn").addEventListener("click", async () => {
  try {
    await feedback.learn();
  } catch (error) {
    return toast(error.message);
  }
  byId("learn").dataset.asked = "yes";
  watchLearning();
});

function showProof(found) {
  if (!found) return;
  pair = found.query ? found : null;
  byId("proof").dataset.pairs = found.judged;
  byId("proof-hint").textContent = `Judge ${found.enough} results drawn by chance${found.sentences.length > 1 ? ", of both models together" : ""}. They only measure; nothing is learned from them.`;
  byId("proof").replaceChildren(...found.sentences.map((text) => element("p", {}, [text])));
  if (!byId("judging").hidden && pair) {
    for (const [id, picture] of [["judged-query", pair.query], ["judged-result", pair.result]])
      Object.assign(byId(id), { src: picture.picture, title: picture.path });
  }
  if (!pair) byId("judging").hidden = true;
}

const judge = async (same) => pair && showProof(await attempt(() => nextOf(feedback.judge({
  fingerprint: pair.fingerprint, query: pair.query.ref, result: pair.result.ref, rank: pair.rank, model: pair.model, same }), feedback.sample)));

byId("judge").addEventListener("click", async () => {
  byId("judging").hidden = false;
  byId("judge").hidden = true;
  showProof(await attempt(feedback.sample));
});
byId("right").addEventListener("click", () => judge(true));
byId("wrong").addEventListener("click", () => judge(false));
byId("done").addEventListener("click", () => give(tapped()));
byId("all").addEventListener("click", () => give(refs()));
byId("none").addEventListener("click", () => give([]));
byId("skip").addEventListener("click", skip);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, dialog")) return;
  const does = { a: () => give(refs()), n: () => give([]), s: skip, Enter: () => !event.target.closest("button") && tapped().length && give(tapped()) }[event.key];
  if (does) does();
});
function fail(error) {
  byId("count").textContent = error.message;
  document.querySelector("#asking h1").textContent = "The questions cannot be shown";
}

const anew = () => feedback.screen().catch(fail).then(async (first) => {
  show(first);
  showProof(await feedback.sample().catch(() => null));
});
wireShell(() => attempt(feedback.screen).then(show));
attempt(async () => {
  bar = await beginStore(anew);
}).then(anew);
watchLearning();
