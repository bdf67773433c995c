// Making elements without ever reading text as HTML, and short messages.

export function element(name, attributes = {}, children = []) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

// Replace what is in a place; whoever was in its third field by keyboard is in the third field again.
export function refill(place, ...children) {
  const fields = () => [...place.querySelectorAll("button, input, select")];
  const at = fields().indexOf(document.activeElement);
  place.replaceChildren(...children);
  if (at >= 0) fields()[Math.min(at, fields().length - 1)]?.focus({ preventScroll: true });
}

// "1 photo", "2 photos", "1,204 photos".
export const counted = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

export function toast(text) {
  const shown = element("div", { class: "toast" }, [text]);
  const place = byId("toasts");
  (document.querySelector("dialog[open]") ?? document.body).append(place); // an open dialog covers everything else
  place.replaceChildren(shown);
  setTimeout(() => shown.remove(), 6000);
}

// Put a text on the clipboard, also where the browser gives pages without TLS no clipboard; false when it refuses.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", { class: "aside", readonly: "" });
    field.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(field); // a dialog lets nothing outside be selected
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
