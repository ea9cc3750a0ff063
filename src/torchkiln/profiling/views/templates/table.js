// Builds elements from text only, so that no name in a profile can become markup.
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const CHUNK = 100;

// A table that sorts and searches all of its rows, but draws them only as they are scrolled to.
// columns: {title, number, value(row) to sort by, cell(row) to show}; words(row) is searched.
class BigTable {
  constructor(place, {columns, rows, words, open, sort, count, search}) {
    Object.assign(this, {place, columns, words, open, count});
    this.sort = sort;
    this.query = "";
    if (search) search.addEventListener("input", () => { this.query = search.value; this.draw(); });
    place.addEventListener("scroll", () => {
      if (place.scrollTop + place.clientHeight > place.scrollHeight - 400) this.append();
    });
    this.setRows(rows);
  }

  setRows(rows, columns, sort) {
    this.rows = rows;
    if (columns) this.columns = columns;
    if (sort) this.sort = sort;
    this.searched = null;
    this.draw();
  }

  draw() {
    const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !this.searched) this.searched = this.rows.map(row => this.words(row).toLowerCase());
    let shown = this.rows;
    if (words.length) shown = shown.filter((_, at) => words.every(word => this.searched[at].includes(word)));
    const {column, down} = this.sort;
    if (column !== null) {
      const value = this.columns[column].value, sign = down ? -1 : 1;
      const keys = new Map(shown.map(row => [row, value(row)]));
      // What is unknown stands at the end, however it is sorted.
      shown = [...shown].sort((a, b) => {
        const x = keys.get(a), y = keys.get(b);
        if (x === null || y === null) return (x === null) - (y === null);
        return x < y ? -sign : x > y ? sign : 0;
      });
    }
    this.shown = shown;
    this.drawn = 0;
    this.body = make("tbody");
    this.place.replaceChildren(make("table", {class: "grid"}, make("thead", {}, make("tr", {}, ...this.columns.map((c, at) => this.head(c, at)))), this.body));
    this.place.scrollTop = 0;
    this.append();
    if (this.count) this.count.textContent = shown.length === this.rows.length ? formatCount(shown.length) + (shown.length === 1 ? " row" : " rows") : formatCount(shown.length) + " of " + formatCount(this.rows.length) + " rows";
  }

  head(column, at) {
    const sorted = this.sort.column === at;
    const button = make("button", {type: "button", title: column.hint}, column.title);
    button.addEventListener("click", () => {
      this.sort = {column: at, down: sorted ? !this.sort.down : Boolean(column.number)};
      this.draw();
      this.place.querySelectorAll("thead button")[at].focus();
    });
    return make("th", {scope: "col", class: column.number ? "n" : null, "aria-sort": sorted ? (this.sort.down ? "descending" : "ascending") : null}, button);
  }

  append() {
    for (const row of this.shown.slice(this.drawn, this.drawn + CHUNK)) this.body.append(this.line(row));
    this.drawn = Math.min(this.drawn + CHUNK, this.shown.length);
  }

  line(row) {
    const cells = this.columns.map(column => make("td", {class: column.number ? "n" : column.css}, column.cell(row)));
    const line = make("tr", {}, ...cells);
    if (!this.open || !this.open(row, true)) return line;
    const button = make("button", {type: "button", class: "toggle", "aria-expanded": "false", "aria-label": "more about this row"}, "\u25b8");
    cells[0].prepend(button);
    line.className = "open-able";
    line.addEventListener("click", event => {
      if (String(getSelection())) return;
      const next = line.nextElementSibling;
      const isOpen = next && next.className === "inner";
      if (isOpen) next.remove();
      else line.after(make("tr", {class: "inner"}, make("td", {colspan: cells.length}, this.open(row, false))));
      button.textContent = isOpen ? "\u25b8" : "\u25be";
      button.setAttribute("aria-expanded", String(!isOpen));
      event.stopPropagation();
    });
    return line;
  }
}

function nameCell(label, detail, tag) {
  const cell = make("span", {class: "name-cell"}, make("span", {}, label));
  if (detail) cell.append(make(tag || "code", {}, detail));
  return cell;
}
