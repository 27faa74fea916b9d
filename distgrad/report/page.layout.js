"use strict";
/* Lays out the tasks of a plan in layers, with d3-dag. Runs in a web worker, so that the page stays responsive. */

/* Maximum number of points, including those of edges over several layers, for each level of layout quality. */
const CAREFUL = 300;
const QUICK = 2500;

/* The layer of each task. Tasks are in topological order, so one pass suffices. */
function layersOf(count, edges) {
  const layer = new Array(count).fill(0);
  const into = Array.from({ length: count }, () => []);
  for (const [from, to] of edges) into[to].push(from);
  for (let k = 0; k < count; k++) for (const j of into[k]) layer[k] = Math.max(layer[k], layer[j] + 1);
  return layer;
}

/* Edges to include in the layout: long ones are left out to keep it small, and are drawn as straight lines. Each task
   keeps the edge that determines its layer. */
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

/* Use the layers computed above. The library would layer each connected component of the included edges separately, and
   so could place a task before one that it reads through an edge that was left out. */
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

/* Layers run down the page, or to the right if the plan is deeper than it is wide. */
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
