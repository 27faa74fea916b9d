"use strict";
/* Colours: of the page, read from its style sheet, and of workers. */

/* Distinct for colour-blind readers too (the "bright" scheme of Paul Tol); later rounds are lighter, then darker. */
const WORKER_COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999"];
const ROUNDS = [(c) => c, (c) => mixed(c, "#ffffff", 0.45), (c) => mixed(c, "#000000", 0.35)];

function workerColour(worker) {
  const n = WORKER_COLOURS.length;
  return ROUNDS[Math.floor(worker / n) % ROUNDS.length](WORKER_COLOURS[worker % n]);
}

function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function mixed(colour, other, share) {
  const b = channels(other);
  const parts = channels(colour).map((x, i) => Math.round(x * (1 - share) + b[i] * share));
  return "#" + parts.map((x) => x.toString(16).padStart(2, "0")).join("");
}

/* Text colour that is readable on a background colour. */
function textOn(colour) {
  const [r, g, b] = channels(colour).map((x) => (x / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.28 ? "#15181b" : "#ffffff";
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["bg", "card", "fg", "soft", "line", "grid", "accent", "edge", "barrier", "focus", "predicted"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
}

/* Common settings of charts: unobtrusive axes, and tooltips built from elements, never from HTML text. */
function baseOption(colours, formatter) {
  return {
    animation: false,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colours.fg },
    tooltip: {
      trigger: "item",
      confine: true,
      transitionDuration: 0,
      className: "tip",
      backgroundColor: colours.card,
      borderColor: colours.line,
      textStyle: { color: colours.fg, fontSize: 13 },
      extraCssText: "white-space: normal;",
      formatter,
    },
  };
}

function axis(colours, extra) {
  return {
    axisLine: { lineStyle: { color: colours.line } },
    axisTick: { show: false },
    axisLabel: { color: colours.soft, hideOverlap: true },
    splitLine: { lineStyle: { color: colours.grid } },
    ...extra,
  };
}

/* Style of a task that is hovered or selected. */
function statesOf(colours) {
  return {
    emphasis: { style: { stroke: colours.focus, lineWidth: 2 } },
    select: { style: { stroke: colours.focus, lineWidth: 3, shadowBlur: 8, shadowColor: colours.focus } },
  };
}
