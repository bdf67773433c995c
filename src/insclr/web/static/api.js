// Talks to the server. Every failure becomes an Error whose message is meant for the person.

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw failure(0, "The server does not answer. Is `insclr serve` still running?");
  }
  if (response.ok) return response.json();
  throw failure(response.status, explain(response.status, await response.json().catch(() => null)));
}

// `status` is that of the answer, 0 when there was none.
const failure = (status, message) => Object.assign(new Error(message), { status });

function explain(status, body) {
  if (typeof body?.detail === "string") return capital(body.detail);
  if (Array.isArray(body?.detail)) return body.detail.map((one) => `${one.loc.at(-1)}: ${one.msg}`).join("; ");
  return `The server answered with status ${status}.`;
}

// A sentence begins with a capital letter, unless it begins with the name of a file.
const capital = (text) => (/^[a-z']+[ ,:]/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text);

const rowAddress = (ref) => `api/stores/${ref.replace(":", "/rows/")}`;

export const about = () => answer(fetch("api/about"));

export const sample = (store, seed) => answer(fetch(`api/stores/${store}/sample?count=24&seed=${seed}`));

export const columns = (store) => answer(fetch(`api/stores/${store}/columns`));

export const photo = (ref) => answer(fetch(rowAddress(ref)));

// Why a photo cannot be shown, in the server's own words; empty when it can be after all.
export async function reasonMissing(address) {
  const response = await fetch(address).catch(() => null);
  if (!response) return "The server does not answer.";
  return response.ok ? "" : explain(response.status, await response.json().catch(() => null));
}

let asked = []; // the query of the last search

// What the last search was for.
export const lastQuery = () => asked;

function queryForm(query) {
  const form = new FormData();
  for (const item of query) {
    const box = item.box ? item.box.map((side) => side.toFixed(5)).join(",") : "";
    if (item.file) {
      form.append("pictures", item.file, item.name);
      form.append("boxes", box);
    } else {
      form.append("rows", item.ref);
      form.append("row_boxes", box);
    }
  }
  form.append("box_unit", "fraction");
  return form;
}

export function search(query, options, signal) {
  asked = query;
  const form = queryForm(query);
  for (const [name, value] of Object.entries(options)) form.append(name, value);
  return answer(fetch("api/search", { method: "POST", body: form, signal }));
}

// The points that the last query shares with a photo.
export function why(ref) {
  const form = queryForm(asked);
  form.append("found", ref);
  return answer(fetch("api/why", { method: "POST", body: form }));
}
