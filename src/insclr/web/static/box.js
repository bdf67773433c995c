// Drawing, moving and resizing the box on the query photo. Boxes are fractions of the photo: [left, top, right, bottom].
// A mouse draws at once. A finger scrolls the page until `marking` is on; corners can always be dragged.

const SMALLEST = 0.02;
const STEP = 0.02;

export class BoxEditor {
  constructor(canvas, image, frame, onChange) {
    Object.assign(this, { canvas, image, frame, onChange, box: null, drag: null, marking: false });
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => this.finish(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    image.addEventListener("load", () => this.paint());
    new ResizeObserver(() => this.paint()).observe(canvas);
  }

  mark(on) {
    this.marking = on;
    this.canvas.classList.toggle("marking", on);
  }

  set(box) {
    this.box = box;
    this.paint();
  }

  // Where the photo itself lies inside the canvas: object-fit leaves margins.
  area() {
    const { width, height } = this.image.getBoundingClientRect();
    const scale = Math.min(width / this.image.naturalWidth, height / this.image.naturalHeight) || 0;
    const w = this.image.naturalWidth * scale;
    const h = this.image.naturalHeight * scale;
    return { left: (width - w) / 2, top: (height - h) / 2, width: w, height: h };
  }

  point(event) {
    const canvas = this.canvas.getBoundingClientRect();
    const area = this.area();
    const x = (event.clientX - canvas.left - area.left) / area.width;
    const y = (event.clientY - canvas.top - area.top) / area.height;
    return [Math.min(1, Math.max(0, x)), Math.min(1, Math.max(0, y))];
  }

  begin(event) {
    if (event.button || !this.image.naturalWidth) return;
    const corner = event.target.dataset?.corner;
    if (event.pointerType === "touch" && !this.marking && !corner) return;
    const at = this.point(event);
    if (corner) {
      const [left, top, right, bottom] = this.box;
      this.drag = { from: [corner.includes("w") ? right : left, corner.includes("n") ? bottom : top] };
    } else if (event.target === this.frame) {
      this.drag = { moved: at, start: this.box };
    } else {
      this.drag = { from: at };
    }
    this.drag.before = this.box;
    this.canvas.setPointerCapture(event.pointerId);
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
  }

  move(event) {
    if (!this.drag) return;
    const [x, y] = this.point(event);
    if (this.drag.moved) {
      this.set(shifted(this.drag.start, x - this.drag.moved[0], y - this.drag.moved[1]));
    } else {
      const [a, b] = this.drag.from;
      this.set([Math.min(a, x), Math.min(b, y), Math.max(a, x), Math.max(b, y)]);
    }
  }

  finish() {
    if (!this.drag) return;
    const { before } = this.drag;
    this.drag = null;
    const tiny = this.box && (this.box[2] - this.box[0] < SMALLEST || this.box[3] - this.box[1] < SMALLEST);
    if (tiny) this.set(before);
    if (String(this.box) !== String(before)) this.onChange(this.box);
  }

  key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (way) {
      const [left, top, right, bottom] = this.box ?? [0.25, 0.25, 0.75, 0.75];
      const [dx, dy] = way.map((one) => one * STEP);
      const grown = [left, top, Math.min(1, Math.max(left + SMALLEST, right + dx)), Math.min(1, Math.max(top + SMALLEST, bottom + dy))];
      this.set(event.shiftKey ? grown : shifted([left, top, right, bottom], dx, dy));
      this.onChange(this.box);
    } else if (["Delete", "Backspace", "Escape"].includes(event.key) && this.box) {
      this.set(null);
      this.onChange(null);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  paint() {
    this.frame.hidden = !this.box;
    if (!this.box) return;
    const area = this.area();
    const [left, top, right, bottom] = this.box;
    this.frame.style.left = `${area.left + left * area.width}px`;
    this.frame.style.top = `${area.top + top * area.height}px`;
    this.frame.style.width = `${(right - left) * area.width}px`;
    this.frame.style.height = `${(bottom - top) * area.height}px`;
  }
}

function shifted([left, top, right, bottom], dx, dy) {
  const x = Math.min(1 - right, Math.max(-left, dx));
  const y = Math.min(1 - bottom, Math.max(-top, dy));
  return [left + x, top + y, right + x, bottom + y];
}
