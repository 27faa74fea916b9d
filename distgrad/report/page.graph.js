"use strict";
/* The plan as a graph: tasks coloured by worker, reduce tasks as hexagons, barriers as dashed lines. */

const NODE = [132, 34];
const GAP = [20, 46];
/* Number of edges from which they are drawn as one path of straight lines, without tooltips. */
const MANY_EDGES = 1500;
const TALLEST = 620;

class GraphView extends Chart {
  constructor(onSelect) {
    super("graph", ["x", "y"]);
    this.down = true;
    this.note = document.getElementById("layout-note");
    this.onSelect = onSelect;
    this.source = URL.createObjectURL(
      new Blob([JSON.parse(document.getElementById("worker").textContent)], { type: "text/javascript" }),
    );
  }

  /* Lay out and draw a plan. Resolves when it is drawn; showing another plan cancels it. */
  async open(model, mode, colours) {
    Object.assign(this, { model, mode, colours, selected: null, matches: null });
    this.chart?.dispose();
    this.chart = null;
    this.tall = TALLEST;
    this.box.style.height = `${this.tall}px`;
    this.note.textContent = `Laying out ${counted(model.tasks.length, "task")} \u2026`;
    const begin = performance.now();
    const layout = await this.placed(model);
    if (model !== this.model) return;
    this.note.textContent = layout.error ? `The graph could not be laid out here: ${layout.error}` : "";
    this.layoutSeconds = (performance.now() - begin) / 1000;
    this.layout = layout.error ? null : layout;
    this.redraw(mode, colours);
  }

  placed(model) {
    this.worker?.terminate();
    return new Promise((resolve) => {
      try {
        this.worker = new Worker(this.source);
      } catch (error) {
        resolve({ error: String(error) });
        return;
      }
      this.worker.onmessage = (event) => resolve(event.data);
      this.worker.onerror = (event) => resolve({ error: event.message });
      const edges = model.edges.map((edge) => [edge.from, edge.to]);
      this.worker.postMessage({
        count: model.tasks.length,
        edges,
        size: NODE,
        gap: GAP,
        view: [this.width, this.tall],
      });
    });
  }

  redraw(mode, colours) {
    Object.assign(this, { mode, colours });
    if (!this.layout) return;
    this.tall = Math.round(
      Math.min(TALLEST, Math.max(200, this.layout.height * Math.min(1.15, this.width / this.layout.width) + 48)),
    );
    const [x, y] = this.ranges();
    const hidden = { type: "value", show: false };
    this.extent = { x, y };
    this.start(
      {
        ...baseOption(colours, (p) => this.tip(p)),
        grid: { left: 4, right: 4, top: 4, bottom: 4 },
        xAxis: { ...hidden, min: x[0], max: x[1] },
        yAxis: { ...hidden, min: y[0], max: y[1], inverse: true },
        dataZoom: [
          insideZoom("x", {
            xAxisIndex: 0,
            minValueSpan: (this.width / 2.2) * Math.min(1, (x[1] - x[0]) / this.width),
          }),
          insideZoom("y", { yAxisIndex: 0, minValueSpan: (this.tall / 2.2) * Math.min(1, (y[1] - y[0]) / this.tall) }),
        ],
        series: this.series(),
      },
      this.tall,
    );
    this.chart.on("click", (p) => p.seriesId === "tasks" && this.onSelect(p.data[2]));
    this.chart.getZr().on("click", (event) => !event.target && this.onSelect(null));
  }

  /* Axis ranges that show the whole plan, at most at its natural size. If one axis has room left, the plan is stretched
     up to twice along it; a plan much too long for the page is compressed along the other. */
  ranges() {
    const { width, height } = this.layout;
    const room = [this.width - 8, this.tall - 8];
    const fit = [room[0] / (width + 24), room[1] / (height + 24)].map((s) => Math.min(s, 1.15));
    const same = Math.min(...fit);
    const scale = same * NODE[1] < 9 ? fit : fit.map((s) => Math.min(s, 2.2 * same));
    return [
      [width, room[0] / scale[0]],
      [height, room[1] / scale[1]],
    ].map(([size, shown]) => [(size - shown) / 2, (size + shown) / 2]);
  }

  series() {
    const { colours, layout, model } = this;
    const many = model.edges.length > MANY_EDGES;
    const tasks = layout.at.map(([x, y], k) => [x, y, k]);
    const nodes = {
      id: "tasks",
      type: "custom",
      data: tasks,
      z: 4,
      progressive: 0,
      selectedMode: "single",
      clip: true,
      encode: { x: 0, y: 1, itemName: 2 },
      renderItem: (params, api) => this.node(params, api),
    };
    return [...(many ? this.manyEdges(colours) : [this.fewEdges()]), nodes];
  }

  manyEdges(colours) {
    const kinds = [
      ["edges", false, { color: colours.edge, width: 0.7, opacity: 0.55 }],
      ["barriers", true, { color: colours.barrier, width: 1, type: "dashed", opacity: 0.8 }],
    ];
    const wanted = kinds.filter(([, barrier]) => this.model.edges.some((edge) => edge.barrier === barrier));
    return wanted.map(([id, barrier, lineStyle]) => ({
      id,
      type: "lines",
      coordinateSystem: "cartesian2d",
      polyline: true,
      large: true,
      largeThreshold: 0,
      progressive: 0,
      silent: true,
      z: 2,
      lineStyle,
      tooltip: { show: false },
      data: this.model.edges.flatMap((edge, i) =>
        edge.barrier === barrier ? [this.way(i).length, ...this.way(i).flat()] : [],
      ),
    }));
  }

  fewEdges() {
    const data = this.model.edges.map((_, i) => [...this.way(i)[0], i]);
    return {
      id: "edges",
      type: "custom",
      data,
      z: 2,
      progressive: 0,
      clip: true,
      renderItem: (params, api) => this.edge(api.value(2), api),
    };
  }

  /* The edges of the selected task. */
  overlay() {
    const k = this.selected;
    if (k === null) return [];
    const edges = this.model.edges.flatMap((edge, i) => (edge.from === k || edge.to === k ? [i] : []));
    return edges.map((i) => {
      const made = echarts.graphic.makePath(
        this.path(i, (point) => this.pixel(point)),
        { z: 3 },
      );
      made.setStyle({
        ...this.edgeStyle(this.model.edges[i]),
        stroke: this.model.edges[i].barrier ? this.colours.barrier : this.colours.focus,
        lineWidth: 2.2,
        opacity: 1,
      });
      return made;
    });
  }

  way(i) {
    const edge = this.model.edges[i];
    return this.layout.ways[i] ?? [this.layout.at[edge.from], this.layout.at[edge.to]];
  }

  /* A line that leaves and enters along the direction of the layers. */
  path(i, toPixel) {
    const points = this.way(i).map(toPixel);
    const along = this.layout.right ? 0 : 1;
    let path = `M${points[0][0]} ${points[0][1]}`;
    for (let j = 1; j < points.length; j++) {
      const [a, b] = [points[j - 1], points[j]];
      const middle = (a[along] + b[along]) / 2;
      const [c, d] = along
        ? [
            [a[0], middle],
            [b[0], middle],
          ]
        : [
            [middle, a[1]],
            [middle, b[1]],
          ];
      path += ` C${c[0]} ${c[1]} ${d[0]} ${d[1]} ${b[0]} ${b[1]}`;
    }
    return path;
  }

  edgeStyle({ barrier, bytes }) {
    const lineWidth = barrier ? 1.4 : Math.min(4, 0.9 + Math.log2(1 + bytes / 65536) / 4);
    return {
      fill: "none",
      stroke: barrier ? this.colours.barrier : this.colours.edge,
      lineWidth,
      lineDash: barrier ? [5, 4] : null,
      opacity: 0.85,
    };
  }

  edge(i, api) {
    const style = this.edgeStyle(this.model.edges[i]);
    const emphasis = { style: { stroke: this.colours.accent, lineWidth: style.lineWidth + 1.5 } };
    return { type: "path", shape: { pathData: this.path(i, (point) => api.coord(point)) }, style, emphasis };
  }

  node(params, api) {
    const k = api.value(2);
    const [x, y] = api.coord([api.value(0), api.value(1)]);
    const [sx, sy] = api.size([1, 1]);
    const w = Math.min(Math.max(NODE[0] * sx, 2.5), NODE[0] * 1.6);
    const h = Math.min(Math.max(NODE[1] * sy, 4), NODE[1] * 1.9);
    const area = params.coordSys;
    if (x + w < area.x || x - w > area.x + area.width || y + h < area.y || y - h > area.y + area.height) return null;
    return this.shape(k, x, y, w, h);
  }

  shape(k, x, y, w, h) {
    const { colours } = this;
    const task = this.model.tasks[k];
    const fill = workerColour(this.model.times(this.mode).worker[k]);
    const dim = this.matches && !this.matches.has(k);
    const style = { fill, stroke: colours.card, lineWidth: Math.min(w, h) > 9 ? 1 : 0, opacity: dim ? 0.18 : 1 };
    const made =
      task.kind === "reduce"
        ? { type: "polygon", shape: { points: hexagon(x, y, w, h) } }
        : { type: "rect", shape: { x: x - w / 2, y: y - h / 2, width: w, height: h, r: Math.min(5, h / 4) } };
    return { ...made, ...this.label(k, w, h, textOn(fill)), style, ...statesOf(colours) };
  }

  /* The text that fits: ops, then the time, then the line. */
  label(k, w, h, fill) {
    if (w < 44 || h < 12) return {};
    const task = this.model.tasks[k];
    const times = this.model.times(this.mode);
    const rows = [task.ops, timeText(times.end[k] - times.start[k]), task.line];
    const text = rows.slice(0, h >= 46 ? 3 : h >= 31 ? 2 : 1).join("\n");
    const inside = w - (task.kind === "reduce" ? 22 : 10);
    const style = {
      text,
      fill,
      fontSize: h < 15 ? 10 : 11,
      lineHeight: 14,
      align: "center",
      width: inside,
      overflow: "truncate",
    };
    return { textContent: { type: "text", style }, textConfig: { position: "inside" } };
  }

  tip(p) {
    if (p.seriesId === "tasks") return taskTip(this.model, p.data[2]);
    return edgeTip(this.model, this.model.edges[p.data[2]]);
  }

  select(k) {
    this.selected = k;
    this.choose("tasks", k);
    if (k === null || !this.chart) return;
    const [x, y] = this.layout.at[k];
    this.reveal({ x: percent(x, this.extent.x), y: percent(y, this.extent.y) });
  }

  mark(matches) {
    this.matches = matches;
    this.chart?.setOption({ series: [{ id: "tasks" }] });
  }
}

function hexagon(x, y, w, h) {
  const [a, b, tip] = [w / 2, h / 2, Math.min(w / 2, h / 2.4)];
  return [
    [x - a, y],
    [x - a + tip, y - b],
    [x + a - tip, y - b],
    [x + a, y],
    [x + a - tip, y + b],
    [x - a + tip, y + b],
  ];
}

function percent(value, [from, to]) {
  return (100 * (value - from)) / (to - from);
}
