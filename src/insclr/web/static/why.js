// Why a photo was found: both photos side by side, the points that they share joined by lines, the thing in a box.

import * as api from "./api.js";
import { element } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const MOST_LINES = 80;
const GAP = 16; // pixels between the photos, as in why.css
const TALLEST = 0.75; // of the window

export function whyButton(match) {
  const button = element("button", { "data-do": "why", "aria-label": "Why was this found?", title: "Why was this found?", tabindex: -1 }, ["?"]);
  button.addEventListener("click", () => explain(match));
  return button;
}

// Opens the view over whatever is shown.
export async function explain(match) {
  const sentence = element("p", { class: "why-sentence", role: "status" }, ["Comparing the photos …"]);
  const close = element("button", { class: "icon close", "aria-label": "Close" }, ["✕"]);
  const place = element("div", { class: "why-photos" });
  const dialog = element("dialog", { class: "why", "aria-label": "Why was this found?" }, [close, sentence, place]);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const query = api.lastQuery();
    const answer = await api.why(match.ref);
    sentence.textContent = answer.sentence;
    // The server counts uploads first, then rows.
    const ordered = [...query.filter((one) => one.file), ...query.filter((one) => !one.file)];
    await show(place, ordered[answer.query], match, answer);
  } catch (error) {
    sentence.textContent = error.message;
  }
}

async function show(place, item, match, answer) {
  const source = item.file ? URL.createObjectURL(item.file) : `api/stores/${item.ref.replace(":", "/rows/")}/picture`;
  const [query, found] = await Promise.all([loaded(source, "The query"), loaded(match.picture, match.path)]);
  if (item.file) URL.revokeObjectURL(source);
  place.replaceChildren(query, found);
  const lines = document.createElementNS(SVG, "svg");
  lines.setAttribute("class", "why-lines");
  lines.setAttribute("aria-hidden", "true");
  place.append(lines);
  const paint = () => {
    for (const image of [query, found]) fit(image, place);
    draw(lines, place, query, found, answer);
  };
  new ResizeObserver(paint).observe(place);
  paint();
}

function loaded(source, alt) {
  const image = element("img", { src: source, alt, draggable: "false" });
  return image.decode().then(() => image, () => image);
}

// As large as half of the place and the window allow: points of small photos can be told apart too.
function fit(image, place) {
  if (!image.naturalWidth) return;
  const scale = Math.min((place.clientWidth - GAP) / 2 / image.naturalWidth, (TALLEST * innerHeight) / image.naturalHeight);
  image.style.width = `${Math.floor(scale * image.naturalWidth)}px`;
}

function draw(lines, place, query, found, answer) {
  const frame = place.getBoundingClientRect();
  const [left, right] = [query, found].map((one) => {
    const box = one.getBoundingClientRect();
    return ([x, y]) => [box.left - frame.left + x * box.width, box.top - frame.top + y * box.height];
  });
  lines.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  lines.replaceChildren();
  const add = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    lines.append(made);
  };
  const step = Math.max(1, Math.ceil(answer.query_points.length / MOST_LINES));
  answer.query_points.forEach((point, i) => {
    if (i % step) return;
    const [x1, y1] = left(point);
    const [x2, y2] = right(answer.found_points[i]);
    add("line", { x1, y1, x2, y2 });
    add("circle", { cx: x1, cy: y1, r: 3 });
    add("circle", { cx: x2, cy: y2, r: 3 });
  });
  if (answer.box) {
    const [x, y] = right(answer.box.slice(0, 2));
    const [x2, y2] = right(answer.box.slice(2));
    add("rect", { x, y, width: x2 - x, height: y2 - y });
  }
}

document.head.append(element("link", { rel: "stylesheet", href: "static/why.css" }));
