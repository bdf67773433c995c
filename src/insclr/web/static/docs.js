// The API's documentation from its own OpenAPI description, without any outside script.

import { byId, element } from "./dom.js";
import { beginStore, wireShell } from "./shell.js";

wireShell();
beginStore(() => {}).catch(() => {}); // the description below needs no store

const description = await (await fetch("openapi.json")).json();
const resolve = (schema) => (schema?.$ref ? description.components.schemas[schema.$ref.split("/").at(-1)] : schema);

function typeOf(schema) {
  const inner = schema?.$ref ? resolve(schema) : schema;
  if (!inner) return "";
  if (inner.enum) return inner.enum.join(" | ");
  if (inner.type === "array") return `list of ${typeOf(inner.items)}`;
  if (inner.format === "binary" || inner.contentMediaType) return "file";
  return schema.$ref ? schema.$ref.split("/").at(-1) : inner.type ?? "";
}

function table(head, rows) {
  const line = (kind, cells) => element("tr", {}, cells.map((cell) => element(kind, {}, [String(cell ?? "")])));
  return element("table", {}, [line("th", head), ...rows.map((row) => line("td", row))]);
}

function inputs(operation) {
  const rows = (operation.parameters ?? []).map((one) => [one.name, typeOf(one.schema), one.schema.default, one.description]);
  for (const { schema } of Object.values(operation.requestBody?.content ?? {})) {
    for (const [name, field] of Object.entries(resolve(schema).properties ?? {})) {
      rows.push([name, typeOf(field), Array.isArray(field.default) ? "" : field.default, field.description]);
    }
  }
  return rows;
}

function outputs(operation) {
  const given = Object.values(operation.responses["200"]?.content ?? {})[0]?.schema;
  const schema = resolve(given?.type === "array" ? resolve(given.items) : given);
  return Object.entries(schema?.properties ?? {}).map(([name, field]) => [name, typeOf(field), field.description]);
}

byId("example").textContent = `curl -F pictures=@photo.jpg -F boxes=40,60,300,320 -F top=20 ${location.origin}/api/search`;
for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const parts = [element("summary", {}, [element("b", {}, [method.toUpperCase()]), element("code", {}, [path]), element("span", {}, [operation.description ?? ""])])];
    if (inputs(operation).length) parts.push(table(["takes", "type", "default", ""], inputs(operation)));
    if (outputs(operation).length) parts.push(table(["gives", "type", ""], outputs(operation)));
    parts.push(table(["status", "meaning"], Object.entries(operation.responses).map(([status, one]) => [status, one.description])));
    byId("main").append(element("details", path === "/api/search" ? { open: "" } : {}, parts));
  }
}
