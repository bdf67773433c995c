// Cards of things, for the gallery on the start page and for the page of all things; dialogs to choose a thing or a name.

import { counted, element } from "./dom.js";
import * as feedback from "./feedback_api.js";
import { attempt } from "./shell.js";

export function card(thing) {
  const covers = thing.covers.map((one) => {
    const image = element("img", { src: one.thumbnail, alt: "", loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => image.classList.add("gone"));
    return image;
  });
  const title = element("b", {}, [thing.name || "no name yet"]);
  if (!thing.name) title.classList.add("unnamed");
  const facts = [element("span", {}, [counted(thing.photos, "photo")])];
  if (thing.score !== undefined) facts.push(element("span", {}, [`${Math.round(thing.score * 100)} % alike`]));
  if (thing.proposed) facts.push(element("span", { class: "doubt", title: "Photos that look like it and wait for you" }, [`${thing.proposed} to check`]));
  if (thing.uncertain) facts.push(element("span", { class: "doubt", title: "These photos may show several things" }, ["several things?"]));
  if (thing.hidden) facts.push(element("span", { class: "doubt" }, ["hidden"]));
  return element("a", { class: "thing", href: `things#${thing.id}`, "data-thing": thing.id }, [
    element("div", { class: `covers n${covers.length}` }, covers),
    title,
    element("p", {}, facts),
  ]);
}

function dialog(label, children, answered) {
  const cancel = element("button", {}, ["Cancel"]);
  const made = element("dialog", { class: "choose", "aria-label": label }, [element("h2", {}, [label]), ...children, element("div", { class: "acts" }, [cancel])]);
  cancel.addEventListener("click", () => made.close());
  made.addEventListener("close", () => {
    made.remove();
    answered(null); // an answer that was given before stays
  });
  document.body.append(made);
  made.showModal();
  return made;
}

// Ask which other thing it is, the likeliest first; null where the person gives up.
export async function chooseThing(asked, without) {
  const found = await attempt(() => feedback.likelyThings(asked, true));
  if (!found) return null;
  return new Promise((answered) => {
    const filter = element("input", { type: "search", placeholder: "Find by name", "aria-label": "Find by name" });
    const cards = found.filter((one) => one.id !== without).map((one) => {
      const made = card(one);
      made.addEventListener("click", (event) => {
        event.preventDefault();
        answered(one);
        shown.close();
      });
      return made;
    });
    filter.addEventListener("input", () => {
      for (const one of cards) one.hidden = !one.querySelector("b").textContent.toLocaleLowerCase().includes(filter.value.toLocaleLowerCase());
    });
    const shown = dialog("Which thing is it?", [filter, element("div", { class: "cards" }, cards)], answered);
  });
}

// Ask a question with answers [value, label]; null where the person gives up.
export function askName(question, answers) {
  return new Promise((answered) => {
    const buttons = answers.map(([value, label]) => {
      const made = element("button", { "data-answer": value }, [label]);
      made.addEventListener("click", () => {
        answered(value);
        shown.close();
      });
      return made;
    });
    const shown = dialog(question, [element("div", { class: "acts" }, buttons)], answered);
  });
}
