"use strict";
/* Text parts of the page: figures, the table of ops, retried tasks, and the selected task. */

const FIRST_OPS = 20;

function subtitle(model) {
  const { cluster, engine } = TRACE;
  const cpus = cluster.workers.reduce((sum, worker) => sum + worker.cpus, 0);
  const gpus = cluster.workers.reduce((sum, worker) => sum + worker.gpus, 0);
  const size = [
    counted(cluster.nodes, "node"),
    counted(cluster.workers.length, "worker"),
    counted(cpus, "cpu"),
    ...(gpus ? [counted(gpus, "GPU")] : []),
  ];
  const reduces = model.tasks.filter((task) => task.kind === "reduce").length;
  const tasks = counted(model.tasks.length, "task") + (reduces ? ` (${reduces.toLocaleString("en")} reduce)` : "");
  const { count, began } = model.plain.runs;
  const ran = count
    ? `${counted(count, "run")}, the last ${began ? `at ${new Date(began * 1000).toLocaleString()}` : "shown"}`
    : "planned, never run";
  return [
    `${engine} engine, cluster ${cluster.name} (${size.join(", ")})`,
    `${tasks} of ${counted(model.plain.steps, "step")}`,
    ran,
  ].join(" \u00b7 ");
}

function figures(model) {
  const { predictions, measured, budget } = model.plain;
  const resident = measured ? peakOf(measured.resident) : 0;
  return [
    figure("Time", predictions.seconds, model.seconds, timeText, timeNotes(model)),
    figure("Peak memory on one worker", predictions.peak_bytes, measured && model.peak("measured"), bytesText, [
      ...(resident ? [`Resident memory of processes: up to ${bytesText(resident)}.`] : []),
      ...(budget === null ? [] : [`Budget: ${bytesText(budget)}.`]),
    ]),
    figure("Moved between tasks", model.moved("predicted"), measured && model.moved("measured"), bytesText, [
      TRACE.engine === "local"
        ? "One process: tasks share its memory."
        : `Predicted including feeds and variables: ${bytesText(predictions.bytes_moved)}.`,
    ]),
  ];
}

function timeNotes(model) {
  const { predictions, runs } = model.plain;
  const notes = [];
  if (runs.seconds.length > 1) {
    const sorted = [...runs.seconds].sort((a, b) => a - b);
    const n = sorted.length;
    const middle = (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2;
    const [fast, slow] = [timeText(sorted[0]), timeText(sorted[n - 1])];
    notes.push(`${counted(runs.count, "run")}: fastest ${fast}, median ${timeText(middle)}, slowest ${slow}.`);
  }
  const mode = model.modes[0];
  notes.push(`Workers with tasks were busy ${(100 * model.busy(mode)).toFixed(0)} % of the time (${mode}).`);
  notes.push(
    `Predicted work ${timeText(predictions.work_seconds)}, longest chain ${timeText(predictions.critical_seconds)}.`,
  );
  if (model.plain.decides) notes.push(`What decides: ${model.plain.decides}.`);
  return notes;
}

function figure(title, predicted, measured, text, notes) {
  const most = Math.max(predicted, measured ?? 0) || 1;
  const row = (what, value) =>
    el(
      "div",
      { class: "row" },
      el("span", { class: "what" }, what),
      el("span", { class: "meter" }, el("i", { class: what, style: `width: ${(100 * (value ?? 0)) / most}%` })),
      el("b", {}, value === null ? "\u2013" : text(value)),
    );
  const ratio = measured === null ? "" : ratioText(measured, predicted);
  const all = [...(ratio ? [`Measured is ${ratio} the prediction.`] : []), ...notes];
  return el(
    "div",
    { class: "figure" },
    el("h3", {}, title),
    row("predicted", predicted),
    row("measured", measured),
    ...all.map((note) => el("p", {}, note)),
  );
}

function againBox(model, onSelect) {
  const measured = model.plain.measured;
  const tasks = Object.entries(measured?.again ?? {});
  if (!tasks.length && !measured?.reasons.length) return [];
  const rows = tasks.map(([k, n]) =>
    el(
      "li",
      {},
      taskButton(Number(k), onSelect),
      `: ${counted(n, "time")} (${model.tasks[k].ops}, ${model.tasks[k].line})`,
    ),
  );
  const reasons = measured.reasons.map((reason) => el("li", {}, reason));
  return [
    el(
      "div",
      { class: "again" },
      el("h3", {}, `${counted(tasks.length, "task")} run again`),
      el("ul", {}, ...rows),
      el("h3", {}, reasons.length ? "Why" : ""),
      el("ul", {}, ...reasons),
    ),
  ];
}

function taskButton(k, onSelect) {
  return el("button", { type: "button", class: "link", onclick: () => onSelect(k) }, `task ${k}`);
}

/* The selected task, with buttons for its neighbours. */
function detailsOf(model, k, onSelect) {
  const close = el(
    "button",
    { type: "button", class: "close", "aria-label": "Close", onclick: () => onSelect(null) },
    "Close",
  );
  const around = [
    ["reads from", model.into[k].filter((edge) => !edge.barrier).map((edge) => edge.from)],
    ["read by", model.from[k].filter((edge) => !edge.barrier).map((edge) => edge.to)],
    ["waits for", model.tasks[k].waits],
    ["waited for by", model.from[k].filter((edge) => edge.barrier).map((edge) => edge.to)],
  ].filter(([, tasks]) => tasks.length);
  const list = factList(factsOf(model, k));
  for (const [name, tasks] of around) {
    const more = tasks.length > 12 ? [`and ${tasks.length - 12} more`] : [];
    list.append(
      el("dt", {}, name),
      el("dd", {}, el("span", { class: "tasks" }, ...tasks.slice(0, 12).map((j) => taskButton(j, onSelect)), ...more)),
    );
  }
  return [close, taskTitle(model, k), list];
}

/* The table of ops; a click on a column sorts it. */
class OpsTable {
  constructor() {
    this.table = document.getElementById("ops");
    this.more = document.getElementById("more-ops");
    this.more.addEventListener("click", () => this.draw(true));
  }

  open(model) {
    const { ops, ops_measured: measured } = model.plain;
    this.total = ops.reduce((sum, row) => sum + row.seconds, 0) || 1;
    this.measured = measured;
    this.rows = ops;
    this.order = ["seconds", -1];
    document.getElementById("ops-title").textContent = measured ? "Slowest ops, measured" : "Slowest ops, predicted";
    document.getElementById("ops-hint").textContent =
      (measured
        ? "Seconds of the run shown, summed over the calls of an op at a line."
        : "Seconds by the cost model, summed over the calls of an op at a line; nothing was measured.") +
      " The shares are of the ops listed.";
    this.draw(false);
  }

  columns() {
    const ratio = (row) => (row.predicted > 0 ? row.seconds / row.predicted : 0);
    const text = [
      ["op", "Op", (row) => row.op],
      ["line", "Line", (row) => row.line],
    ];
    const numbers = [
      ["calls", "Calls", (row) => row.calls, String],
      ["seconds", this.measured ? "Measured" : "Predicted", (row) => row.seconds, timeText],
    ];
    if (this.measured)
      numbers.push(
        ["predicted", "Predicted", (row) => row.predicted ?? 0, (x) => (x ? timeText(x) : "\u2013")],
        ["ratio", "Measured / predicted", ratio, (x) => (x ? x.toFixed(2) : "\u2013")],
      );
    return [...text, ...numbers];
  }

  draw(all) {
    const [key, sign] = this.order;
    const columns = this.columns();
    const value = columns.find(([name]) => name === key)[2];
    const rows = [...this.rows].sort((a, b) => sign * (value(a) > value(b) ? 1 : value(a) < value(b) ? -1 : 0));
    const shown = all ? rows : rows.slice(0, FIRST_OPS);
    this.all = all;
    this.more.hidden = shown.length === rows.length;
    this.more.textContent = `Show all ${rows.length} ops`;
    this.table.replaceChildren(
      el("thead", {}, this.head(columns)),
      el("tbody", {}, ...shown.map((row) => this.row(row, columns))),
    );
  }

  head(columns) {
    const [key, sign] = this.order;
    const cells = columns.map(([name, title, , format]) =>
      el(
        "th",
        {
          scope: "col",
          class: format ? "number" : null,
          "aria-sort": name === key ? (sign > 0 ? "ascending" : "descending") : "none",
        },
        el("button", { type: "button", onclick: () => this.sort(name, format) }, title),
      ),
    );
    return el("tr", {}, ...cells, el("th", { scope: "col" }, "Share"));
  }

  sort(name, numeric) {
    const [key, sign] = this.order;
    this.order = [name, key === name ? -sign : numeric ? -1 : 1];
    this.draw(this.all);
    this.table.querySelector(`th[aria-sort]:not([aria-sort="none"]) button`).focus();
  }

  row(row, columns) {
    const cells = columns.map(([name, , value, format]) =>
      format
        ? el("td", { class: "number" }, format(value(row)))
        : el("td", {}, name === "line" ? el("code", {}, value(row)) : value(row)),
    );
    const share = (100 * row.seconds) / this.total;
    const bar = el(
      "span",
      { class: "meter", style: "display: block", title: `${share.toFixed(1)} %` },
      el("i", { style: `width: ${share}%` }),
    );
    return el("tr", {}, ...cells, el("td", { class: "share" }, bar));
  }
}
