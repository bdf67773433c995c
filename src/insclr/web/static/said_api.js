// Talks to the server about things, names and answers. Every failure becomes an Error meant for the person.

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw failure(0, "The server does not answer. Is `insclr serve` still running?");
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const detail = body?.detail;
  throw failure(response.status, typeof detail === "string" ? detail.charAt(0).toUpperCase() + detail.slice(1) : `The server answered with status ${response.status}.`);
}

// `status` is that of the answer, 0 when there was none; 409: what the page shows is not what is served any more.
const failure = (status, message) => Object.assign(new Error(message), { status });

const get = (path) => answer(fetch(`api/stores/0/${path}`));
const post = (path, body = {}) =>
  answer(fetch(`api/stores/0/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));

export const gallery = (offset = 0, count = 60, hidden = false) => get(`things?offset=${offset}&count=${count}&hidden=${hidden}`);
export const alone = () => get("things/alone");
export const thing = (id) => get(`things/${encodeURIComponent(id)}`);
export const name = (id, text) => post(`things/${encodeURIComponent(id)}/name`, { name: text });
// A thing's or a screen's fingerprint says which model's photos the refs are.
export const remove = ({ id, fingerprint }, refs) => post(`things/${encodeURIComponent(id)}/remove`, { fingerprint, refs });
export const split = ({ id, fingerprint }, refs, text) => post(`things/${encodeURIComponent(id)}/split`, { fingerprint, refs, name: text });
export const merge = (id, into) => post(`things/${encodeURIComponent(id)}/merge`, { into });
export const hide = (id, hidden) => post(`things/${encodeURIComponent(id)}/hide`, { hidden });
export const undo = (entry = "") => post("undo", { entry });

export const screen = () => get("teach/screen");
export const give = ({ query, fingerprint }, same, different) => post("teach/answer", { fingerprint, query: query.ref, same, different });
export const skip = ({ query, fingerprint }) => post("teach/skip", { fingerprint, query: query.ref });
export const sample = () => get("teach/sample");
export const judge = (body) => post("teach/judge", body);
export const learn = () => post("teach/learn");
export const learning = () => get("teach/learn");
