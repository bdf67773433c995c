// Photos of this computer: chosen, dropped or pasted. They stay in the page's memory.

import { byId, toast } from "./dom.js";

const sources = new Map(); // files by a number of their own: the browser's history can only hold plain values

export const fileOf = (item) => sources.get(item.number);

let fresh = true;

// Let the person choose photos, for a new query or for the one at hand.
export function pick(asNew) {
  fresh = asNew;
  byId("file").click();
}

// Call `give(items, fresh)` with what the person chooses, drops or pastes; `limits()` are the server's.
export function wireInput(give, limits) {
  const take = (files, asNew) => {
    const photos = [...files].filter((file) => file.type.startsWith("image/") || !file.type);
    if (!photos.length) return toast("That is not a photo.");
    const most = limits().bytes;
    const large = photos.find((file) => file.size > most);
    if (large) return toast(`${large.name} is larger than ${Math.round(most / 1e6)} MB.`);
    give(photos.map(fromFile), asNew);
  };
  byId("file").addEventListener("change", (event) => {
    if (event.target.files.length) take(event.target.files, fresh);
    event.target.value = "";
  });
  addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) take(event.clipboardData.files, true);
  });
  wireDrop(take);
}

function fromFile(file) {
  const number = `${performance.timeOrigin}-${sources.size}`; // never that of a file before a reload
  const address = URL.createObjectURL(file);
  sources.set(number, file);
  return { number, name: file.name || "pasted photo", thumbnail: address, picture: address, box: null };
}

function wireDrop(take) {
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
    if (event.dataTransfer.files.length) take(event.dataTransfer.files, !event.shiftKey);
  });
}
