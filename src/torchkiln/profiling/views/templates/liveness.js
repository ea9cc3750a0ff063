const tip = document.getElementById("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18) + "px";
}
function hideTip() { tip.hidden = true; }

// Tells which call lies under the pointer, and what is alive during it.
function followPlot(plot, data) {
  const area = plot.querySelector(".area"), cursor = plot.querySelector(".cursor");
  const kinds = Object.keys(data.live), withAlways = plot.dataset.always === "1";
  const count = Math.max(data.calls.length, ...kinds.map(kind => data.live[kind].length));
  area.addEventListener("mousemove", event => {
    const box = area.getBoundingClientRect();
    const call = Math.min(count - 1, Math.max(0, Math.floor(count * (event.clientX - box.left) / box.width)));
    const sizes = kinds.map(kind => [kind, data.live[kind][call] || 0]);
    if (withAlways) sizes.unshift(["always there", data.always]);
    const total = sizes.reduce((sum, [, size]) => sum + size, 0);
    cursor.hidden = false;
    cursor.style.left = 100 * (call + 0.5) / count + "%";
    const about = data.calls[call];
    showTip(event, "call " + formatCount(call) + (about ? ": " + about[0] + " (" + about[2] + ")" : "") + "\n" + formatBytes(total) + "\n" +
      sizes.map(([kind, size]) => kind + " " + formatBytes(size)).join("\n"));
  });
  area.addEventListener("mouseleave", () => { cursor.hidden = true; hideTip(); });
}
