// Cards of things, for the gallery on the start page and for the page of all things.

import { element } from "./dom.js";

export const photos = (count) => `${count} photo${count === 1 ? "" : "s"}`;

export function card(thing) {
  const covers = thing.covers.map((one) => {
    const image = element("img", { src: one.thumbnail, alt: "", loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => image.classList.add("gone"));
    return image;
  });
  const title = element("b", {}, [thing.name || "no name yet"]);
  if (!thing.name) title.classList.add("unnamed");
  const facts = [element("span", {}, [photos(thing.photos)])];
  if (thing.uncertain) facts.push(element("span", { class: "doubt", title: "These photos may show several things" }, ["uncertain"]));
  if (thing.hidden) facts.push(element("span", { class: "doubt" }, ["hidden"]));
  return element("a", { class: "thing", href: `things#${thing.id}`, "data-thing": thing.id }, [
    element("div", { class: `covers n${covers.length}` }, covers),
    title,
    element("p", {}, facts),
  ]);
}
