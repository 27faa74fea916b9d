"use strict";
/* Text and elements: formats times and bytes, and describes tasks. */

/* Create an element; strings become text nodes, never HTML. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function timeText(seconds) {
  if (seconds >= 7200) return `${(seconds / 3600).toFixed(1)} h`;
  if (seconds >= 120) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toFixed(1)} ms`;
  return seconds > 0 ? `${(seconds * 1e6).toFixed(1)} µs` : "0 s";
}

/* A number on an axis, with as few digits as possible. */
function tickText(seconds) {
  if (seconds === 0) return "0";
  const [scale, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${Number((seconds * scale).toPrecision(4))} ${unit}`;
}

function bytesText(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return unit === "B" ? `${n.toFixed(0)} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

function counted(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

function ratioText(measured, predicted) {
  if (!(predicted > 0)) return "";
  const ratio = measured / predicted;
  return ratio >= 10 || ratio < 0.1 ? `${ratio.toPrecision(2)} times` : `${ratio.toFixed(2)} times`;
}

/* The facts of a task, as pairs of name and text. */
function factsOf(model, k) {
  const task = model.tasks[k];
  const { predicted, measured } = model.plain;
  const facts = [
    ["line", task.line],
    ["steps", String(task.steps)],
  ];
  if (measured) {
    const took = measured.end[k] - measured.start[k];
    facts.push([
      "measured",
      `${timeText(took)}, from ${timeText(measured.start[k])}, on ${measured.places[measured.worker[k]]}`,
    ]);
  }
  const expected = predicted.end[k] - predicted.start[k];
  facts.push([
    "predicted",
    `${timeText(expected)}, from ${timeText(predicted.start[k])}, on ${predicted.places[predicted.worker[k]]}`,
  ]);
  const read = model.into[k].reduce((sum, edge) => sum + edge.bytes, 0);
  facts.push(["bytes", `reads ${bytesText(read)} from other tasks, returns ${bytesText(model.given[k])}`]);
  const gpus = task.gpus ? `, ${counted(task.gpus, "GPU")}` : "";
  facts.push(["needs", `${counted(task.cpus, "cpu")}${gpus}, ${bytesText(task.memory)} at its peak`]);
  if (task.device) facts.push(["device", task.device]);
  const again = measured?.again[String(k)];
  if (again) facts.push(["run again", `${counted(again, "time")}`]);
  return facts;
}

function factList(facts) {
  return el("dl", { class: "facts" }, ...facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
}

function taskTitle(model, k) {
  const kind = model.tasks[k].kind === "reduce" ? "Reduce task" : "Task";
  return el("strong", {}, `${kind} ${k}: ${model.tasks[k].ops}`);
}

function taskTip(model, k) {
  const waits = model.tasks[k].waits;
  const facts = factsOf(model, k);
  if (waits.length) facts.push(["waits for", `${counted(waits.length, "task")} more (barrier)`]);
  return el("div", {}, taskTitle(model, k), factList(facts));
}

function edgeTip(model, edge) {
  const text = edge.barrier
    ? `Barrier: task ${edge.to} waits for task ${edge.from}`
    : `Task ${edge.from} gives ${bytesText(edge.bytes)} in ${counted(edge.values, "value")} to task ${edge.to}`;
  return el("div", {}, text);
}
