// The query, the filters and the open photo as the page's address, so that a search can be reloaded, shared and gone back to.

const BOX_DIGITS = 4;

// {query, filters, where, rerank, least, join, store, view} -> "?photo=0:12&only.room=is:Attic", or "./" for the start page.
export function write(state) {
  const values = new URLSearchParams();
  for (const item of state.query) if (item.ref) values.append("photo", item.ref + boxText(item.box));
  // Photos of this computer stay there, and so do their names: the address holds only how many there were.
  const uploaded = state.query.filter((item) => !item.ref).length;
  if (uploaded) values.set("uploaded", uploaded);
  for (const { column, sign, value } of state.filters) values.append(`only.${column}`, `${sign}:${value}`);
  if (state.where.trim()) values.set("where", state.where);
  if (state.rerank) values.set("order", state.rerank);
  if (state.least) values.set("least", state.least);
  if (state.join !== "mean") values.set("join", state.join);
  if (state.store) values.set("store", state.store);
  if (state.view) values.set("view", state.view);
  const text = values.toString().replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%40", "@");
  return text ? `?${text}` : location.pathname;
}

// What an address asks for; whatever makes no sense in it is left out.
export function read(search) {
  const values = new URLSearchParams(search);
  return {
    photos: values.getAll("photo").map(photo).filter(Boolean),
    uploaded: Math.min(16, Math.max(0, Math.trunc(Number(values.get("uploaded"))) || 0)),
    filters: [...values].filter(([name]) => name.startsWith("only.")).map(filter).filter(Boolean),
    where: values.get("where") ?? "",
    rerank: values.get("order") ?? "",
    least: Math.min(95, Math.max(0, Number(values.get("least")) || 0)),
    join: values.get("join") === "max" ? "max" : "mean",
    store: values.get("store") === "1" ? 1 : 0,
    view: isRef(values.get("view")) ? values.get("view") : null,
  };
}

const isRef = (text) => /^\d:\d{1,19}$/.test(text ?? "");

function photo(text) {
  const [ref, box] = text.split("@");
  if (!isRef(ref)) return null;
  const sides = box?.split(",").map(Number) ?? [];
  const fits = sides.length === 4 && sides.every((side) => side >= 0 && side <= 1) && sides[0] < sides[2] && sides[1] < sides[3];
  return { ref, box: fits ? sides : null };
}

function filter([name, text]) {
  const [, sign, value] = /^([a-z-]+):([^]*)$/.exec(text) ?? [];
  return sign ? { column: name.slice("only.".length), sign, value } : null;
}

const boxText = (box) => (box ? `@${box.map((side) => Number(side.toFixed(BOX_DIGITS))).join(",")}` : "");
