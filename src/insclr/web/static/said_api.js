// Talks to the server about things, names and answers. Every failure becomes an Error meant for the person.

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Error("The server does not answer. Is `insclr serve` still running?");
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const detail = body?.detail;
  throw new Error(typeof detail === "string" ? detail.charAt(0).toUpperCase() + detail.slice(1) : `The server answered with status ${response.status}.`);
}

const get = (path) => answer(fetch(`api/stores/0/${path}`));
const post = (path, body = {}) =>
  answer(fetch(`api/stores/0/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));

export const gallery = (offset = 0, count = 60, hidden = false) => get(`things?offset=${offset}&count=${count}&hidden=${hidden}`);
export const alone = () => get("things/alone");
export const thing = (id) => get(`things/${encodeURIComponent(id)}`);
export const name = (id, text) => post(`things/${encodeURIComponent(id)}/name`, { name: text });
export const remove = (id, refs) => post(`things/${encodeURIComponent(id)}/remove`, { refs });
export const split = (id, refs, text) => post(`things/${encodeURIComponent(id)}/split`, { refs, name: text });
export const merge = (id, into) => post(`things/${encodeURIComponent(id)}/merge`, { into });
export const hide = (id, hidden) => post(`things/${encodeURIComponent(id)}/hide`, { hidden });
export const undo = (entry = "") => post("undo", { entry });

export const screen = () => get("teach/screen");
export const give = (query, same, different) => post("teach/answer", { query, same, different });
export const skip = (query) => post("teach/skip", { query });
export const sample = () => get("teach/sample");
export const judge = (body) => post("teach/judge", body);
export const learn = () => post("teach/learn");
export const learning = () => get("teach/learn");
