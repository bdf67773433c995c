// Calls of the server about things, names and answers. Every failure becomes an Error meant for the person.

import { readBlob, readJson } from "./api.js";

let store = 0;

// Ask about this store from now on.
export const use = (number) => {
  store = number;
};

const get = (path) => readJson(fetch(`api/stores/${store}/${path}`));
const sent = (path, body) =>
  fetch(`api/stores/${store}/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
const post = (path, body = {}) => readJson(sent(path, body));
const onThing = (id) => `things/${encodeURIComponent(id)}`;

export const gallery = (offset = 0, count = 60, hidden = false) => get(`things?offset=${offset}&count=${count}&hidden=${hidden}`);
// A thing by its id, or by a photo of it.
export const thing = (id) => get(id.includes(":") ? `photos/${id.split(":")[1]}/thing` : onThing(id));
// `again`: also where another thing has this name; else that is refused (409).
export const name = (id, text, again = false) => post(`${onThing(id)}/name`, { name: text, again });
// A thing's or a screen's fingerprint is that of the model whose photos the refs are: a request with an old one fails with 409.
export const merge = (id, into, text = null) => post(`${onThing(id)}/merge`, { into, name: text });
export const judgeProposals = ({ id, fingerprint }, refs, same) => post(`${onThing(id)}/proposals`, { fingerprint, refs, same });
export const hide = (id, hidden) => post(`${onThing(id)}/hide`, { hidden });
export const undo = (entry = "") => post("undo", { entry });
export const history = (offset = 0, count = 50) => get(`history?offset=${offset}&count=${count}`);

export const photos = (query) => get(`photos?${new URLSearchParams(query)}`);
export const likelyThings = ({ refs, fingerprint }, unnamed = false) => post(`photos/things?unnamed=${unnamed}`, { refs, fingerprint });
export const namePhotos = ({ refs, fingerprint }, what) => post("photos/name", { refs, fingerprint, thing: what.thing ?? "", name: what.thing ? "" : what.name });
export const tellApart = ({ refs, fingerprint }, query) => post("photos/different", { refs, fingerprint, query });
export const removePhotos = ({ refs, fingerprint }) => post("photos/remove", { refs, fingerprint });
export const zip = ({ refs, fingerprint }) => readBlob(sent("photos/zip", { refs, fingerprint }));

export const screen = () => get("teach/screen");
export const answer = ({ query, fingerprint }, same, different) => post("teach/answer", { fingerprint, query: query.ref, same, different });
export const skip = ({ query, fingerprint }) => post("teach/skip", { fingerprint, query: query.ref });
export const sample = () => get("teach/sample");
export const judge = (body) => post("teach/judge", body);
export const learn = () => post("teach/learn");
export const stopLearning = () => post("teach/learn/stop");
export const learning = () => get("teach/learn");

export const goBack = (step) => post("history/back", { step });
export const doAgain = (step) => post("history/again", { step });
export const namesAddress = () => `api/stores/${store}/names.csv`;
