// The gallery below the search box of the start page.

import { byId, element } from "./dom.js";
import { card } from "./thing_cards.js";
import * as feedback from "./feedback_api.js";

const FIRST = 14; // two full rows on a wide screen, seven on a phone

export async function showGallery() {
  const place = byId("things");
  if (!place) return;
  try {
    const found = await feedback.gallery(0, FIRST);
    if (!found.things.length) return;
    const links = [element("a", { href: "things" }, [`All ${found.total} things`]), ...(found.alone ? [element("a", { href: "photos?show=new" }, [`${found.alone} new`])] : []), element("a", { href: "teach" }, ["Teach by clicking"])];
    place.replaceChildren(
      element("header", {}, [element("h2", {}, ["Things in your photos"]), element("nav", {}, links)]),
      element("div", { class: "cards" }, found.things.map(card)),
    );
    place.hidden = false;
  } catch {
    place.hidden = true; // searching works without it
  }
}
