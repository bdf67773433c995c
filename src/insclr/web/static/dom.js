// Making elements without ever reading text as HTML.

export function element(name, attributes = {}, children = []) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

export function toast(text) {
  const shown = element("div", { class: "toast" }, [text]);
  byId("toasts").replaceChildren(shown);
  setTimeout(() => shown.remove(), 6000);
}
