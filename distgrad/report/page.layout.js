"use strict";
/* Places the tasks of a plan in layers, with d3-dag. Runs in a worker of the browser, so that the page stays alive. */

/* Points that the layout may have to place, edges over several layers included, at each level of care. */
const CAREFUL = 300;
const QUICK = 2500;

/* The layer of each task: tasks come in order, so one walk finds them. */
function layersOf(count, edges) {
  const layer = new Array(count).fill(0);
  const into = Array.from({ length: count }, () => []);
  for (const [from, to] of edges) into[to].push(from);
  for (let k = 0; k < count; k++) for (const j of into[k]) layer[k] = Math.max(layer[k], layer[j] + 1);
  return layer;
}

/* Edges over at most so many layers that the layout stays small. Each task keeps the edge that decides its layer; what
   is left out is drawn as a straight line. */
function shortEdges(count, edges, layer, points) {
  const spans = edges.map(([from, to]) => layer[to] - layer[from]);
  let most = 1;
  for (const limit of [2, 3, 5, 8, 13, Infinity]) {
    const size = spans.reduce((sum, span) => (span <= limit ? sum + span : sum), count);
    if (size > points) break;
    most = limit;
  }
  return edges.map((_, i) => spans[i] <= most);
}

/* The layers that are known already. The library would find its own for each part of the plan that hangs together by
   the edges it is given, and so put tasks before what they read by an edge that was left out. */
function knownLayers(layer) {
  return (graph) => {
    for (const node of graph.nodes()) node.y = layer[node.data];
    return layer.reduce((a, b) => Math.max(a, b));
  };
}

function operatorsFor(size, layer) {
  if (size <= CAREFUL) {
    return [d3.layeringSimplex(), d3.decrossTwoLayer().order(d3.twolayerAgg()), d3.coordSimplex()];
  }
  const layering = knownLayers(layer);
  if (layer.length <= QUICK / 2)
    return [layering, d3.decrossTwoLayer().order(d3.twolayerAgg()).passes(4), d3.coordGreedy()];
  return [layering, d3.decrossDfs(), d3.coordGreedy()];
}

/* Layers run down the page, or to the right where the plan is deeper than it is wide. */
function goesRight(layer, { size, gap, view }) {
  const width = new Map();
  for (const l of layer) width.set(l, (width.get(l) ?? 0) + 1);
  const wide = [...width.values()].reduce((a, b) => Math.max(a, b));
  const down = Math.min(view[0] / (wide * (size[0] + gap[0])), view[1] / (width.size * (size[1] + gap[1])));
  const right = Math.min(view[0] / (width.size * (size[0] + gap[1])), view[1] / (wide * (size[1] + gap[0])));
  return right > down;
}

function placed({ count, edges, size, gap, view }) {
  const layer = layersOf(count, edges);
  const right = goesRight(layer, { size, gap, view });
  const all = edges.reduce((sum, [from, to]) => sum + layer[to] - layer[from], count);
  const kept = all <= CAREFUL ? edges.map(() => true) : shortEdges(count, edges, layer, QUICK);
  const graph = d3.graph();
  const nodes = Array.from({ length: count }, (_, k) => graph.node(k));
  const links = edges.map(([from, to], i) => (kept[i] ? graph.link(nodes[from], nodes[to]) : null));
  const [layering, decross, coord] = operatorsFor(all, layer);
  const layout = d3.sugiyama().layering(layering).decross(decross).coord(coord);
  const found = layout.nodeSize(right ? [size[1], size[0]] : size).gap(gap)(graph);
  const turned = ([x, y]) => (right ? [y, x] : [x, y]);
  return {
    right,
    width: right ? found.height : found.width,
    height: right ? found.width : found.height,
    at: nodes.map((node) => turned([node.x, node.y])),
    ways: links.map((link) => (link ? link.points.map(turned) : null)),
  };
}

self.onmessage = (event) => {
  try {
    self.postMessage(placed(event.data));
  } catch (error) {
    self.postMessage({ error: String(error) });
  }
};
