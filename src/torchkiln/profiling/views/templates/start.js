const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);

// A group is [label, detail, us, us by phase, calls, GFLOP/s, GB/s, attained, bound, estimate, rows].
function phaseBar(group) {
  const most = data.executable_us;
  const bar = make("div", {class: "mini", title: data.phases.map((phase, at) => phase + " " + plainUs(group[3][at] || 0) + " \u00b5s").join(", ")});
  data.phases.forEach((phase, at) => { if (group[3][at] > 0 && most > 0) bar.append(make("span", {class: "fill-" + phase, style: "width:" + 100 * group[3][at] / most + "%"})); });
  return bar;
}
function estimated(us, isEstimate) {
  const cell = document.createDocumentFragment();
  if (isEstimate) cell.append(make("b", {class: "est", title: "partly an estimate: a kernel serves several, its time is divided by their work"}, "~"));
  cell.append(plainUs(us));
  return cell;
}
const groupColumns = view => [
  {title: view, css: "name", value: g => view === "call" ? g[10].length ? data.rows.rows[g[10][0]][0] : Infinity : g[0].toLowerCase(), cell: g => nameCell(g[0], g[1])},
  {title: "\u00b5s", number: true, value: g => g[2], cell: g => estimated(g[2], g[9])},
  {title: "share", number: true, value: g => g[2], cell: g => formatShare(g[2], data.executable_us)},
  {title: "by phase", value: g => -g[2], cell: phaseBar},
  {title: "calls", number: true, hint: "how often kernels run for it in one step", value: g => g[4], cell: g => formatCount(g[4])},
  {title: "GFLOP/s", number: true, value: g => g[5], cell: g => formatRate(g[5])},
  {title: "GB/s", number: true, value: g => g[6], cell: g => formatRate(g[6])},
  {title: "of roof", number: true, hint: "least possible time at the measured peaks, over the measured time", value: g => g[7], cell: g => formatAttained(g[7], g[8])},
];
const SHOWN_ROWS = 30;
function groupDetails(group, ask) {
  if (ask) return group[10].length > 0;
  const {texts, rows} = data.rows;
  const sums = new Map();
  for (const at of group[10]) {
    const row = rows[at], key = row.slice(1, 6).join();
    const sum = sums.get(key) || {row, us: 0, calls: [], estimate: 0};
    sum.us += row[6] || 0; sum.calls.push(row[0]); sum.estimate |= row[7];
    sums.set(key, sum);
  }
  const sorted = [...sums.values()].sort((a, b) => b.us - a.us);
  const lines = sorted.slice(0, SHOWN_ROWS).map(({row, us, calls, estimate}) => make("tr", {},
    make("td", {}, texts[row[1]]), make("td", {class: "name"}, texts[row[2]]), make("td", {class: "name"}, texts[row[3]]), make("td", {}, texts[row[4]]),
    make("td", {class: "n"}, estimated(us, estimate)),
    make("td", {}, calls.slice(0, 6).join(", ") + (calls.length > 6 ? " and " + (calls.length - 6) + " more" : ""))));
  if (sorted.length > SHOWN_ROWS) {
    const left = sorted.slice(SHOWN_ROWS);
    lines.push(make("tr", {}, make("td", {colspan: 4}, formatCount(left.length) + " more"), make("td", {class: "n"}, plainUs(left.reduce((sum, one) => sum + one.us, 0))), make("td")));
  }
  const head = ["phase", "module", "line or parameter", "operator", "\u00b5s", "calls"].map((title, at) => make("th", {scope: "col", class: at === 4 ? "n" : null}, title));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines));
}

if (data.groups) {
  const unsorted = view => ({column: view === "call" || view === "phase" ? null : 1, down: true});
  const table = new BigTable(byId("op-table"), {
    columns: groupColumns("line"), rows: data.groups.line, sort: unsorted("line"), count: byId("op-count"), search: byId("op-search"), open: groupDetails,
    words: g => g[0] + " " + g[1] + " " + g[10].map(at => data.rows.rows[at].slice(1, 6).map(text => data.rows.texts[text]).join(" ")).join(" "),
  });
  for (const input of document.querySelectorAll("input[name=view]"))
    input.addEventListener("change", () => table.setRows(data.groups[input.value], groupColumns(input.value), unsorted(input.value)));
  if (byId("flame")) {
    const flame = new Flame(byId("flame"), data.flame, {search: byId("flame-search"), reset: byId("flame-reset"), found: byId("flame-found")});
    for (const input of document.querySelectorAll("input[name=flame]")) input.addEventListener("change", () => flame.show(input.value));
  } else byId("flame-tools").remove();
}

for (const plot of document.querySelectorAll(".plot.live")) followPlot(plot, data);
for (const dot of document.querySelectorAll("[data-tip]")) {
  dot.addEventListener("mousemove", event => showTip(event, dot.dataset.tip));
  dot.addEventListener("mouseleave", hideTip);
  dot.addEventListener("focus", () => { const box = dot.getBoundingClientRect(); showTip({clientX: box.right, clientY: box.bottom}, dot.dataset.tip); });
  dot.addEventListener("blur", hideTip);
}

// A block is [line or module, code, kind, shape, module, operator, bytes, born, last].
if (byId("block-table")) {
  const count = Math.max(data.calls.length, ...data.blocks.map(block => block[8] + 1), 1);
  const life = block => make("div", {class: "life", title: "from call " + block[7] + " to call " + block[8]},
    make("span", {class: "fill-" + block[2], style: "left:" + 100 * block[7] / count + "%;width:" + 100 * (block[8] + 1 - block[7]) / count + "%"}));
  new BigTable(byId("block-table"), {
    rows: data.blocks, sort: {column: 2, down: true}, count: byId("block-count"), search: byId("block-search"),
    words: block => block.slice(0, 6).join(" "),
    columns: [
      {title: "line", css: "name", value: b => b[0], cell: b => nameCell(b[0], b[1])},
      {title: "what", value: b => b[2] + b[3], cell: b => nameCell(b[2] + " " + b[3], b[4] + ": " + b[5], "small"), css: "name"},
      {title: "size", number: true, value: b => b[6], cell: b => formatBytes(b[6])},
      {title: "lifetime", value: b => b[7], cell: life},
      {title: "calls", number: true, value: b => b[8] - b[7], cell: b => formatCount(b[7]) + "\u2013" + formatCount(b[8])},
    ],
  });
}

// A call is [kernel, kind, phase, us, runs, entry, inputs, outputs, operations].
data.calls.forEach((call, index) => call.push(index));
function callDetails(call, ask) {
  if (ask) return call[8].length > 1;
  return make("ul", {}, ...call[8].map(operation => make("li", {}, operation)));
}
new BigTable(byId("call-table"), {
  rows: data.calls, sort: {column: 0, down: false}, count: byId("call-count"), search: byId("call-search"), open: callDetails,
  words: c => [c[0], c[1], c[2], c[5], ...c[6], ...c[7], ...c[8]].join(" "),
  columns: [
    {title: "#", value: c => c[9], cell: c => formatCount(c[9]), css: "mono"},
    {title: "kernel", css: "name", value: c => c[0], cell: c => nameCell(c[0], c[1] + (c[4] === 1 ? "" : ", runs " + formatCount(c[4]) + " times") + ", in " + c[5], "small")},
    {title: "phase", value: c => data.phases.indexOf(c[2]), cell: c => c[2]},
    ...(data.measured ? [{title: "\u00b5s", number: true, value: c => c[3], cell: c => plainUs(c[3])}] : []),
    {title: "reads \u2192 writes", css: "mono shapes", value: c => c[7].join(), cell: c => c[6].join(", ") + " \u2192 " + c[7].join(", ")},
    {title: "computes", css: "name", value: c => c[8].length, cell: c => c[8].length > 1 ? c[8].length + " operations: " + c[8][0] + ", \u2026" : c[8][0] || ""},
  ],
});
