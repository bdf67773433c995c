// Calls of the server. Every failure becomes an Error whose message is meant for the person.

export const readJson = async (request) => (await answered(request)).json();

export const readBlob = async (request) => (await answered(request)).blob();

async function answered(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw failure(0, "The server does not answer. Is `insclr serve` still running?");
  }
  if (response.ok) return response;
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

export const about = () => readJson(fetch("api/about"));

export const sample = (store, seed) => readJson(fetch(`api/stores/${store}/sample?count=24&seed=${seed}`));

export const columns = (store) => readJson(fetch(`api/stores/${store}/columns`));

export const photo = (ref) => readJson(fetch(rowAddress(ref)));

// The server's reason why a photo cannot be shown; empty when it can be after all.
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

// `unlike` are photos of the store that do not show the thing.
export function search(query, options, unlike, signal) {
  asked = query;
  const form = queryForm(query);
  for (const [name, value] of Object.entries(options)) form.append(name, value);
  for (const ref of unlike) form.append("unlike", ref);
  return readJson(fetch("api/search", { method: "POST", body: form, signal }));
}

// The points that the last query shares with a photo.
export function why(ref) {
  const form = queryForm(asked);
  form.append("found", ref);
  return readJson(fetch("api/why", { method: "POST", body: form }));
}
