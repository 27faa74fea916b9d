"use strict";
/* The trace, and the data that the page derives from it. Does no drawing. */

const TRACE = JSON.parse(document.getElementById("trace").textContent);

/* One plan: its tasks, the data they pass to each other, and their predicted and measured times. */
class PlanModel {
  constructor(plain) {
    this.plain = plain;
    this.tasks = plain.tasks;
    this.edges = edgesOf(plain);
    this.into = plain.tasks.map(() => []);
    this.from = plain.tasks.map(() => []);
    for (const edge of this.edges) {
      this.into[edge.to].push(edge);
      this.from[edge.from].push(edge);
    }
    this.given = new Array(plain.tasks.length).fill(0);
    for (const bundle of plain.bundles) this.given[bundle.task] += bundle.nbytes;
  }

  get modes() {
    return this.plain.measured ? ["measured", "predicted"] : ["predicted"];
  }

  times(mode) {
    return this.plain[mode];
  }

  span(mode) {
    return this.times(mode).end.reduce((a, b) => Math.max(a, b), 1e-9);
  }

  /* Seconds of the run shown: of the whole call, if known. */
  get seconds() {
    const measured = this.plain.measured;
    return measured ? (measured.seconds ?? this.span("measured")) : null;
  }

  /* Bytes moved between tasks: each bundle is sent to each node once. Nothing moves within one process. */
  moved(mode) {
    if (TRACE.engine === "local") return 0;
    const times = this.times(mode);
    const node = times.places.map((name, i) => (mode === "predicted" ? TRACE.cluster.workers[i].node : nodeOf(name)));
    let total = 0;
    for (const bundle of this.plain.bundles) {
      total += bundle.nbytes * new Set(bundle.readers.map((k) => node[times.worker[k]])).size;
    }
    return total;
  }

  peak(mode) {
    return peakOf(this.times(mode).memory);
  }

  /* Fraction of the time that the lanes of the timeline are busy. */
  busy(mode) {
    const times = this.times(mode);
    const work = times.end.reduce((sum, end, k) => sum + end - times.start[k], 0);
    return work / (lanesOf(times).rows.length * this.span(mode));
  }

  /* Tasks with this number, or with this text in their ops or lines. */
  find(text) {
    const wanted = text.trim().toLowerCase();
    if (wanted === "") return [];
    const all = this.tasks.map((_, k) => k);
    if (/^\d+$/.test(wanted)) return all.filter((k) => k === Number(wanted));
    const words = ({ ops, line, all = "" }) => `${ops} ${line} ${all}`.toLowerCase();
    return all.filter((k) => words(this.tasks[k]).includes(wanted));
  }
}

/* Edges of reads and barriers: one edge for all bundles between two tasks. */
function edgesOf(plain) {
  const known = new Map();
  const edges = [];
  plain.tasks.forEach((task, to) => {
    for (const [barrier, sources] of [
      [false, task.reads],
      [true, task.waits],
    ]) {
      for (const from of sources) {
        const edge = { from, to, barrier, bytes: 0, values: 0 };
        if (!barrier) known.set(from * plain.tasks.length + to, edge);
        edges.push(edge);
      }
    }
  });
  for (const bundle of plain.bundles) {
    for (const reader of bundle.readers) {
      const edge = known.get(bundle.task * plain.tasks.length + reader);
      if (edge) {
        edge.bytes += bundle.nbytes;
        edge.values += bundle.values;
      }
    }
  }
  return edges;
}

function peakOf(lines) {
  let most = 0;
  for (const line of lines) for (const [, bytes] of line) most = Math.max(most, bytes);
  return most;
}

function nodeOf(place) {
  const found = /^node (\S+),/.exec(place);
  return found ? found[1] : "";
}

/* Rows of a timeline: places that ran tasks, with one lane per concurrent task. */
function lanesOf(times) {
  const byPlace = times.places.map(() => []);
  times.worker.forEach((place, k) => byPlace[place].push(k));
  const rows = [];
  const row = new Array(times.worker.length);
  byPlace.forEach((tasks, place) => {
    tasks.sort((a, b) => times.start[a] - times.start[b] || times.end[a] - times.end[b]);
    const free = [];
    for (const k of tasks) {
      let lane = free.findIndex((until) => until <= times.start[k] + 1e-9);
      if (lane < 0) lane = free.push(0) - 1;
      free[lane] = times.end[k];
      row[k] = rows.length + lane;
    }
    free.forEach((_, lane) => rows.push({ place, lane }));
  });
  return { rows, row };
}

/* The plan to show first: the one that took most time, measured if it ran. */
function mainPlan(plans) {
  const total = plans.map((plan) => {
    const { count, seconds } = plan.runs;
    const mean = seconds.length ? seconds.reduce((a, b) => a + b) / seconds.length : 0;
    return count * mean || plan.predictions.seconds * 1e-9;
  });
  return total.indexOf(Math.max(...total));
}
