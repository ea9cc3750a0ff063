// A node is [name, kind, detail, us, is an estimate, children].
const ROW_PX = 22, THINNEST_PX = 1.5;

class Flame {
  constructor(place, trees, tools) {
    Object.assign(this, {place, trees, tools});
    place.setAttribute("role", "tree");
    place.setAttribute("aria-label", "Flame graph of the executable");
    this.parents = new Map();
    for (const tree of Object.values(trees)) this.link(tree, null);
    this.query = "";
    this.show("module");
    let waiting = 0;
    addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => this.draw()); });
    place.addEventListener("click", event => this.zoom(this.nodeAt(event.target)));
    place.addEventListener("keydown", event => this.key(event));
    place.addEventListener("mousemove", event => { const node = this.nodeAt(event.target); node ? showTip(event, this.words(node)) : hideTip(); });
    place.addEventListener("mouseleave", hideTip);
    place.addEventListener("focusin", event => { const node = this.nodeAt(event.target); if (node) this.focused = node; });
    tools.reset.addEventListener("click", () => this.zoom(this.root));
    tools.search.addEventListener("input", () => { this.query = tools.search.value.trim().toLowerCase(); this.draw(); });
  }

  link(node, parent) {
    this.parents.set(node, parent);
    for (const child of node[5]) this.link(child, node);
  }

  show(name) { this.root = this.trees[name]; this.zoom(this.root); }

  nodeAt(target) { const box = target.closest(".box"); return box ? this.boxes.get(box) : null; }

  zoom(node) {
    if (!node) return;
    this.top = node;
    this.focused = node;
    this.tools.reset.disabled = node === this.root;
    this.draw();
  }

  matches(node) { return (node[0] + " " + node[2]).toLowerCase().includes(this.query); }

  words(node) {
    return node[0] + (node[2] && node[2] !== node[0] ? "\n" + node[2] : "") + "\n" + node[1] + ", " + (node[4] ? "~" : "") + plainUs(node[3]) + " \u00b5s, " +
      formatShare(node[3], this.root[3]) + " of the executable" + (node[4] ? " (partly an estimate)" : "");
  }

  draw() {
    const width = this.place.clientWidth || 800, had = this.place.contains(document.activeElement);
    this.boxes = new Map();
    this.elements = new Map();
    const above = [];
    for (let node = this.parents.get(this.top); node; node = this.parents.get(node)) above.unshift(node);
    above.forEach((node, depth) => this.box(node, 0, 1, depth, width, true));
    let deepest = above.length;
    const place = (node, left, depth) => {
      const share = this.top[3] > 0 ? node[3] / this.top[3] : 0;
      if (share * width < THINNEST_PX) return;
      deepest = Math.max(deepest, depth);
      this.box(node, left, share, depth, width, false);
      for (const child of node[5]) { place(child, left, depth + 1); left += this.top[3] > 0 ? child[3] / this.top[3] : 0; }
    };
    place(this.top, 0, above.length);
    this.place.style.height = (deepest + 1) * ROW_PX + "px";
    this.place.replaceChildren(...this.elements.values());
    this.found();
    const focus = this.elements.get(this.focused) || this.elements.get(this.top);
    if (focus) { focus.tabIndex = 0; if (had) focus.focus({preventScroll: true}); }
  }

  box(node, left, share, depth, width, dim) {
    const hit = this.query && this.matches(node);
    const box = make("div", {
      class: "box k-" + node[1] + (dim ? " dim" : "") + (hit ? " hit" : "") + (share * width < 12 ? " thin" : ""),
      role: "treeitem", tabindex: "-1", "aria-level": depth + 1, "aria-label": this.words(node).replaceAll("\n", ", "),
      style: "left:" + (100 * left).toFixed(4) + "%;width:" + (100 * share).toFixed(4) + "%;top:" + depth * ROW_PX + "px",
    }, share * width < 24 ? "" : node[1] === "line" ? node[0].slice(node[0].lastIndexOf("/") + 1) : node[0]);
    this.boxes.set(box, node);
    this.elements.set(node, box);
  }

  // The time of all boxes that match; what lies inside of one that matches counts once.
  found() {
    if (!this.query) { this.tools.found.textContent = ""; return; }
    const sum = node => this.matches(node) ? node[3] : node[5].reduce((total, child) => total + sum(child), 0);
    const us = sum(this.root);
    this.tools.found.textContent = plainUs(us) + " \u00b5s match, " + formatShare(us, this.root[3]);
  }

  key(event) {
    const node = this.nodeAt(event.target);
    if (!node) return;
    const parent = this.parents.get(node);
    const beside = by => { if (!parent) return null; const all = parent[5].filter(one => this.elements.has(one)); return all[all.indexOf(node) + by]; };
    const moves = {ArrowUp: () => parent, ArrowDown: () => node[5].find(one => this.elements.has(one)), ArrowLeft: () => beside(-1), ArrowRight: () => beside(1)};
    if (event.key in moves) {
      const next = moves[event.key]();
      const box = next && this.elements.get(next);
      if (box) { event.target.tabIndex = -1; box.tabIndex = 0; box.focus(); }
    } else if (event.key === "Enter" || event.key === " ") this.zoom(node);
    else if (event.key === "Escape") this.zoom(this.parents.get(this.top) || this.root);
    else return;
    event.preventDefault();
  }
}
