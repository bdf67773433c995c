// The store at hand: its name and count in the header, the switch between two models, and its columns.

import * as api from "./api.js";
import { byId, counted, element } from "./dom.js";

const EVERY = 10_000; // milliseconds: polling interval of the counts

export class StoreBar {
  // actions: use(number), changed(): photos came or went.
  constructor(actions) {
    Object.assign(this, { actions, about: null, number: 0, compared: -1, columns: [] });
  }

  get store() {
    return this.about.stores[this.number];
  }

  async begin(number) {
    this.about = await api.about();
    this.number = number < this.about.stores.length ? number : 0;
    await this.readColumns();
    this.render();
    const poll = () => document.visibilityState === "visible" && this.refresh();
    setInterval(poll, EVERY);
    for (const event of ["visibilitychange", "focus"]) addEventListener(event, poll);
  }

  // Read the counts anew: photos may have been indexed meanwhile. The next search reports a server that does not answer.
  async refresh(notify = true) {
    const found = await api.about().catch(() => null);
    if (!found) return;
    const before = this.store?.pictures;
    this.about = found;
    this.render();
    if (this.store.pictures === before) return;
    await this.readColumns();
    if (notify) this.actions.changed();
  }

  async use(number) {
    this.number = number < this.about.stores.length ? number : 0;
    await this.readColumns();
    this.render();
  }

  async readColumns() {
    this.columns = await api.columns(this.number).catch(() => []);
  }

  render() {
    const { store, about } = this;
    byId("about").textContent = `${counted(store.pictures, "photo")} · ${store.name}`;
    byId("about").title = `model ${store.model}`;
    byId("compare").hidden = about.stores.length < 2;
    if (this.number === this.compared) return; // nothing new: a button that has the focus keeps it
    this.compared = this.number;
    // "Before" stands left of "After": the second store is the older one.
    byId("compare").replaceChildren(...[...about.stores].reverse().map((one) => {
      const button = element("button", { "aria-pressed": String(one.number === this.number), title: `${one.model} (b)` }, [one.title]);
      button.addEventListener("click", () => this.actions.use(one.number));
      return button;
    }));
  }
}
