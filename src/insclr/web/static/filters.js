// Filters that are chosen instead of typed: a line for each, with a column, a comparison and a value.

import { element, refill } from "./dom.js";

// What a person reads, and the sign of the filter language.
const SIGNS = {
  choice: { is: "=", "is-not": "!=" },
  number: { from: ">=", to: "<=", is: "=", "is-not": "!=" },
  text: { contains: "contains", is: "=", "is-not": "!=" },
};
const SIGN_NAMES = { is: "is", "is-not": "is not", from: "from", to: "up to", contains: "contains" };

// The filters as text of the filter language; filters without a value do not count.
export function toWhere(filters, columns, typed) {
  const parts = filters.filter((one) => one.value.trim()).map((one) => {
    const kind = columns.find((column) => column.name === one.column)?.kind ?? "text";
    const sign = SIGNS[kind][one.sign] ?? "=";
    const bare = kind === "number" && Number.isFinite(Number(one.value));
    return `${quoted(one.column)} ${sign} ${bare ? Number(one.value) : quoted(one.value)}`;
  });
  if (typed.trim()) parts.push(parts.length ? `(${typed})` : typed);
  return parts.join(" and ");
}

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

export class Filters {
  constructor(place, menu, onChange) {
    Object.assign(this, { place, menu, onChange, columns: [], filters: [] });
    menu.addEventListener("change", () => this.add(menu.value));
  }

  // Show these filters, built from these columns: [{name, kind, values, low, high}].
  show(filters, columns) {
    this.filters = filters;
    if (columns !== this.columns) {
      this.columns = columns;
      const options = columns.map((one) => element("option", { value: one.name }, [one.name]));
      this.menu.replaceChildren(element("option", { value: "" }, ["Add a filter…"]), ...options);
    }
    refill(this.place, ...filters.map((one, i) => this.line(one, i)));
  }

  add(name) {
    this.menu.value = "";
    const column = this.columns.find((one) => one.name === name);
    if (!column) return;
    const value = column.kind === "choice" ? column.values[0] : "";
    this.filters = [...this.filters, { column: name, sign: Object.keys(SIGNS[column.kind])[0], value }];
    if (value) this.onChange(this.filters);
    else this.show(this.filters, this.columns);
    this.place.lastElementChild?.querySelector(".value")?.focus();
  }

  change(i, part) {
    this.filters = this.filters.map((one, k) => (k === i ? { ...one, ...part } : one));
    this.onChange(this.filters);
  }

  line(filter, i) {
    const column = this.columns.find((one) => one.name === filter.column) ?? { name: filter.column, kind: "text", values: [] };
    const signs = Object.keys(SIGNS[column.kind]);
    const sign = element("select", { class: "sign", "aria-label": `How ${column.name} is compared` },
      signs.map((one) => element("option", { value: one }, [SIGN_NAMES[one]])));
    sign.value = signs.includes(filter.sign) ? filter.sign : signs[0];
    sign.addEventListener("change", () => this.change(i, { sign: sign.value }));
    const value = this.value(column, filter, i);
    value.addEventListener("change", () => this.change(i, { value: value.value }));
    const remove = element("button", { class: "icon remove", "aria-label": `Remove the filter on ${column.name}`, title: "Remove" }, ["✕"]);
    remove.addEventListener("click", () => {
      this.filters = this.filters.filter((_, k) => k !== i);
      this.onChange(this.filters);
    });
    const list = value.list === undefined || !column.values.length ? [] : [this.suggestions(column, i)];
    return element("li", { class: "filter" }, [element("span", { class: "name", title: column.name }, [column.name]), remove, sign, value, ...list]);
  }

  value(column, filter, i) {
    const label = { class: "value", "aria-label": `Value of ${column.name}` };
    if (column.kind === "choice") {
      const known = column.values.includes(filter.value) ? column.values : [filter.value, ...column.values];
      const select = element("select", label, known.map((one) => element("option", { value: one }, [one])));
      select.value = filter.value;
      return select;
    }
    const range = column.kind === "number" ? `${column.low} to ${column.high}` : column.values[0] ?? "";
    const kind = column.kind === "number" ? { type: "number", step: "any" } : { type: "text", list: `values-${i}` };
    const input = element("input", { ...label, ...kind, placeholder: range, autocomplete: "off", spellcheck: "false" });
    input.value = filter.value;
    return input;
  }

  suggestions(column, i) {
    return element("datalist", { id: `values-${i}` }, column.values.map((one) => element("option", { value: one })));
  }
}
