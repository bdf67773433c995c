// Zooming and moving a photo by wheel, keys, buttons and fingers; a swipe on the whole photo goes to its neighbours.

const MOST = 8;
const CLOSE_UP = 2.5; // what a double click leads to
const SWIPE = 50; // pixels

export class Zoom {
  constructor(stage, image, { swiped, dismissed }) {
    Object.assign(this, { stage, image, swiped, dismissed, pointers: new Map() });
    stage.addEventListener("pointerdown", (event) => this.down(event));
    stage.addEventListener("pointermove", (event) => this.move(event));
    for (const kind of ["pointerup", "pointercancel"]) stage.addEventListener(kind, (event) => this.up(event));
    // The browser's own pinch zoom would enlarge the page around the photo; touch-action alone comes late in some browsers.
    stage.addEventListener("touchmove", (event) => event.preventDefault(), { passive: false });
    stage.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.by(Math.exp(-event.deltaY / 300), event);
    }, { passive: false });
    stage.addEventListener("dblclick", (event) => {
      if (!event.target.closest("button")) this.by(this.scale > 1 ? 1 / this.scale : CLOSE_UP, event);
    });
    this.reset();
  }

  reset() {
    Object.assign(this, { scale: 1, x: 0, y: 0, drag: null });
    this.pointers.clear();
    this.paint();
  }

  // Zoom around a point of the screen: the photo's middle without one.
  by(factor, point) {
    const goal = Math.min(MOST, Math.max(1, this.scale * factor));
    const area = this.stage.getBoundingClientRect();
    const [dx, dy] = point ? [point.clientX - area.left - area.width / 2, point.clientY - area.top - area.height / 2] : [0, 0];
    const grown = goal / this.scale;
    this.x = dx - (dx - this.x) * grown;
    this.y = dy - (dy - this.y) * grown;
    this.scale = goal;
    this.keepInside();
    this.paint();
  }

  down(event) {
    if (event.button || event.target.closest("button, a")) return;
    this.stage.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event);
    this.drag = { at: middle(this.pointers), spread: spread(this.pointers), x: this.x, y: this.y, scale: this.scale, fingers: this.pointers.size };
  }

  move(event) {
    if (!this.pointers.has(event.pointerId)) return;
    this.pointers.set(event.pointerId, event);
    const here = middle(this.pointers);
    if (this.pointers.size > 1) {
      this.x = this.drag.x + here.clientX - this.drag.at.clientX;
      this.y = this.drag.y + here.clientY - this.drag.at.clientY;
      this.by((this.drag.scale * spread(this.pointers)) / this.drag.spread / this.scale, here);
      return;
    }
    this.x = this.drag.x + here.clientX - this.drag.at.clientX;
    this.y = this.drag.y + (this.scale > 1 || event.pointerType === "touch" ? here.clientY - this.drag.at.clientY : 0);
    if (this.scale > 1) this.keepInside();
    this.paint();
  }

  up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.pointers.size) { // the finger that stays goes on from here
      this.drag = { at: middle(this.pointers), spread: 1, x: this.x, y: this.y, scale: this.scale, fingers: 2 };
      return;
    }
    const dx = event.clientX - this.drag.at.clientX;
    const dy = event.clientY - this.drag.at.clientY;
    const single = this.drag.fingers === 1 && this.scale === 1 && event.type === "pointerup";
    if (this.scale === 1) this.reset();
    if (single && Math.abs(dx) > SWIPE && Math.abs(dx) > 1.5 * Math.abs(dy)) this.swiped(dx < 0 ? 1 : -1);
    else if (single && dy > 2 * SWIPE && event.pointerType === "touch") this.dismissed();
  }

  keepInside() {
    const { clientWidth, clientHeight } = this.stage;
    const { naturalWidth = 1, naturalHeight = 1 } = this.image.naturalWidth ? this.image : {}; // while it loads
    const shown = Math.min(clientWidth / naturalWidth, clientHeight / naturalHeight);
    const room = (whole, part) => Math.max(0, (part * shown * this.scale - whole) / 2);
    const [across, down] = [room(clientWidth, naturalWidth), room(clientHeight, naturalHeight)];
    this.x = Math.min(across, Math.max(-across, this.x));
    this.y = Math.min(down, Math.max(-down, this.y));
  }

  paint() {
    this.image.style.transform = `translate(${this.x}px, ${this.y}px) scale(${this.scale})`;
    this.stage.classList.toggle("zoomed", this.scale > 1);
  }
}

function middle(pointers) {
  const all = [...pointers.values()];
  const mean = (name) => all.reduce((sum, one) => sum + one[name], 0) / all.length;
  return { clientX: mean("clientX"), clientY: mean("clientY") };
}

function spread(pointers) {
  const [one, other] = [...pointers.values()];
  return other ? Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1 : 1;
}
