"use strict";
/* The timeline: a row per worker, or several if it ran tasks concurrently, with lines for reduce trees and barriers. */

/* Number of lines of a kind above which they are hidden by default. */
const MANY_LINKS = 600;
const TALL_ROWS = 40;

class TimelineView extends Chart {
  constructor(onSelect) {
    super("timeline", ["x", "y"]);
    this.down = true;
    this.onSelect = onSelect;
    this.boxes = { reduce: document.getElementById("show-reduces"), barrier: document.getElementById("show-barriers") };
    for (const box of Object.values(this.boxes)) box.addEventListener("change", () => this.refresh());
  }

  open(model, mode, colours) {
    Object.assign(this, { model, selected: null, matches: null });
    for (const [kind, box] of Object.entries(this.boxes)) {
      const count = model.edges.filter((edge) => this.kind(edge) === kind).length;
      box.checked = count <= MANY_LINKS;
      box.parentElement.hidden = count === 0;
    }
    this.redraw(mode, colours);
  }

  kind(edge) {
    return edge.barrier ? "barrier" : this.model.tasks[edge.to].kind;
  }

  redraw(mode, colours) {
    Object.assign(this, { mode, colours, times: this.model.times(mode) });
    Object.assign(this, lanesOf(this.times));
    const rows = this.rows.length;
    const tall = rows > TALL_ROWS;
    const narrow = this.width < 560;
    this.start(
      {
        ...baseOption(colours, (p) => taskTip(this.model, p.data[3])),
        grid: { left: narrow ? 84 : 150, right: tall ? 34 : 14, top: 8, bottom: 62 },
        xAxis: axis(colours, {
          type: "value",
          min: 0,
          max: this.model.span(mode),
          axisLabel: { color: colours.soft, formatter: tickText, hideOverlap: true, showMaxLabel: false },
        }),
        yAxis: axis(colours, {
          type: "category",
          inverse: true,
          data: this.rows.map((row) => this.rowLabel(row, narrow)),
          splitLine: { show: false },
          axisLabel: {
            color: colours.soft,
            hideOverlap: true,
            width: narrow ? 78 : 138,
            overflow: "truncate",
            fontSize: narrow ? 11 : 12,
          },
        }),
        dataZoom: this.zoomers(tall, colours),
        series: this.series(),
      },
      Math.min(560, Math.max(170, 82 + rows * 30)),
    );
    this.chart.on("click", (p) => p.seriesId === "bars" && this.onSelect(p.data[3]));
    this.chart.getZr().on("click", (event) => !event.target && this.onSelect(null));
  }

  rowLabel({ place, lane }, narrow) {
    const name = this.times.places[place];
    return lane ? "" : narrow ? name.split(", ").at(-1) : name;
  }

  zoomers(tall, colours) {
    const slider = {
      type: "slider",
      filterMode: "none",
      showDetail: false,
      showDataShadow: false,
      brushSelect: false,
      borderColor: colours.line,
      fillerColor: colours.grid,
      handleStyle: { color: colours.card, borderColor: colours.soft },
      moveHandleStyle: { color: colours.edge },
    };
    return [
      insideZoom("x", { xAxisIndex: 0, minSpan: 0.01 }),
      insideZoom("y", {
        yAxisIndex: 0,
        zoomOnMouseWheel: tall ? "ctrl" : false,
        moveOnMouseMove: tall,
        minSpan: Math.min(100, 500 / this.rows.length),
      }),
      { ...slider, id: "slide-x", xAxisIndex: 0, height: 16, bottom: 10 },
      ...(tall ? [{ ...slider, id: "slide-y", yAxisIndex: 0, width: 14, right: 6 }] : []),
    ];
  }

  series() {
    return [this.bars(), ...this.links()];
  }

  refresh() {
    this.chart?.setOption({ series: this.series() }, { replaceMerge: ["series"] });
  }

  bars() {
    const { start, end } = this.times;
    const data = start.map((from, k) => [from, end[k], this.row[k], k]);
    return {
      id: "bars",
      type: "custom",
      data,
      z: 3,
      progressive: 0,
      selectedMode: "single",
      clip: true,
      encode: { x: [0, 1], y: 2, itemName: 3 },
      renderItem: (params, api) => this.bar(params, api),
    };
  }

  bar(params, api) {
    const k = api.value(3);
    const [from, y] = api.coord([api.value(0), api.value(2)]);
    const [to] = api.coord([api.value(1), api.value(2)]);
    const area = params.coordSys;
    const row = api.size([0, 1])[1];
    if (to < area.x - 2 || from > area.x + area.width + 2 || y + row < area.y || y - row > area.y + area.height)
      return null;
    const { colours } = this;
    const reduces = this.model.tasks[k].kind === "reduce";
    const h = Math.max(1, Math.min(26, row * 0.8) * (reduces ? 0.6 : 1));
    const x = Math.max(from, area.x - 5);
    const w = Math.max(Math.min(to, area.x + area.width + 5) - x, 1.2);
    const fill = workerColour(this.times.worker[k]);
    const dim = this.matches && !this.matches.has(k);
    const frame = Math.min(w, h) > 5 ? (reduces ? 1.5 : 0.5) : 0;
    const style = { fill, stroke: reduces ? colours.focus : colours.card, lineWidth: frame, opacity: dim ? 0.18 : 1 };
    const made = {
      type: "rect",
      shape: { x, y: y - h / 2, width: w, height: h, r: w > 8 && h > 8 ? 3 : 0 },
      style,
      ...statesOf(colours),
    };
    if (w < 50 || h < 12) return made;
    const text = {
      text: this.model.tasks[k].ops,
      fill: textOn(fill),
      fontSize: 11,
      width: w - 8,
      overflow: "truncate",
    };
    return { ...made, textContent: { type: "text", style: text }, textConfig: { position: "inside" } };
  }

  /* Lines from the end of a task to the start of one that reads it in a reduce tree or waits for it. A kind without
     lines has no series, because the library fails on an empty series in large mode. */
  links() {
    const styles = {
      reduce: { color: this.colours.soft, width: 1, opacity: 0.7 },
      barrier: { color: this.colours.barrier, width: 1.4, type: "dashed", opacity: 0.9 },
    };
    return Object.entries(styles).flatMap(([kind, lineStyle]) => {
      const edges = this.boxes[kind].checked ? this.model.edges.filter((edge) => this.kind(edge) === kind) : [];
      if (!edges.length) return [];
      const data = edges.map((edge) => ({ coords: this.link(edge) }));
      return [
        {
          id: `links-${kind}`,
          type: "lines",
          coordinateSystem: "cartesian2d",
          polyline: true,
          large: true,
          largeThreshold: 0,
          progressive: 0,
          silent: true,
          z: kind === "barrier" ? 4 : 2,
          clip: true,
          lineStyle,
          data,
        },
      ];
    });
  }

  link(edge) {
    return [
      [this.times.end[edge.from], this.row[edge.from]],
      [this.times.start[edge.to], this.row[edge.to]],
    ];
  }

  /* Links of the selected task: what it reads, waits for and passes on. */
  overlay() {
    const k = this.selected;
    const edges = k === null ? [] : [...this.model.into[k], ...this.model.from[k]];
    return edges.map((edge) => {
      const [[x1, y1], [x2, y2]] = this.link(edge).map((point) => this.pixel(point));
      const stroke = edge.barrier ? this.colours.barrier : this.colours.focus;
      return new echarts.graphic.Line({
        shape: { x1, y1, x2, y2 },
        style: { stroke, lineWidth: 1.5, lineDash: edge.barrier ? [5, 4] : null },
        z: 5,
      });
    });
  }

  select(k) {
    this.selected = k;
    this.choose("bars", k);
    if (k === null || !this.chart) return;
    const middle = (this.times.start[k] + this.times.end[k]) / 2;
    this.reveal({
      x: percent(middle, [0, this.model.span(this.mode)]),
      y: percent(this.row[k] + 0.5, [0, this.rows.length]),
    });
  }

  mark(matches) {
    this.matches = matches;
    this.refresh();
  }
}
