// Calls of the server about things, names and answers. Every failure becomes an Error meant for the person.

import { readJson } from "./api.js";

const get = (path) => readJson(fetch(`api/stores/0/${path}`));
const post = (path, body = {}) =>
  readJson(fetch(`api/stores/0/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));
const onThing = (id) => `things/${encodeURIComponent(id)}`;

export const gallery = (offset = 0, count = 60, hidden = false) => get(`things?offset=${offset}&count=${count}&hidden=${hidden}`);
export const alone = () => get("things/alone");
export const thing = (id) => get(onThing(id));
export const name = (id, text) => post(`${onThing(id)}/name`, { name: text });
// A thing's or a screen's fingerprint is that of the model whose photos the refs are: a request with an old one fails with 409.
export const remove = ({ id, fingerprint }, refs) => post(`${onThing(id)}/remove`, { fingerprint, refs });
export const split = ({ id, fingerprint }, refs, text) => post(`${onThing(id)}/split`, { fingerprint, refs, name: text });
export const merge = (id, into) => post(`${onThing(id)}/merge`, { into });
export const hide = (id, hidden) => post(`${onThing(id)}/hide`, { hidden });
export const undo = (entry = "") => post("undo", { entry });

export const screen = () => get("teach/screen");
export const answer = ({ query, fingerprint }, same, different) => post("teach/answer", { fingerprint, query: query.ref, same, different });
export const skip = ({ query, fingerprint }) => post("teach/skip", { fingerprint, query: query.ref });
export const sample = () => get("teach/sample");
export const judge = (body) => post("teach/judge", body);
export const learn = () => post("teach/learn");
export const learning = () => get("teach/learn");
