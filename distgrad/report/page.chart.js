"use strict";
/* A chart that can be zoomed and panned: with the wheel, by dragging, with buttons, with keys. */

const ZOOM = 1.6;

class Chart {
  /* `zooms` are the ids of its zooms, one per axis. `onView` is called when the visible range changes. */
  constructor(id, zooms) {
    this.box = document.getElementById(id);
    this.zooms = zooms;
    this.onView = () => {};
    this.reset();
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    const buttons = [
      ["+", "Zoom in", () => this.zoomBy(ZOOM)],
      ["\u2212", "Zoom out", () => this.zoomBy(1 / ZOOM)],
      ["Fit", "Show all", () => this.fit()],
    ];
    const made = buttons.map(([text, label, onclick]) =>
      el("button", { type: "button", "aria-label": `${label}: ${id}`, title: label, onclick }, text),
    );
    document.querySelector(`[data-chart="${id}"]`).append(el("span", { class: "zoom" }, ...made));
  }

  reset() {
    this.view = Object.fromEntries(this.zooms.map((zoom) => [zoom, [0, 100]]));
  }

  /* Redraw from this option, discarding the previous series and zoom. */
  start(option, height) {
    this.chart?.dispose();
    this.box.style.height = `${height}px`;
    this.reset();
    this.chart = echarts.init(this.box, null, { renderer: "canvas" });
    this.chart.setOption(option);
    this.margins = option.grid;
    this.chart.on("datazoom", (event) => {
      for (const part of event.batch ?? [event]) this.view[part.dataZoomId] = [part.start, part.end];
      this.drawOverlay();
      this.onView();
    });
    this.layer = null;
    this.chosen = null;
  }

  /* Select an item of a series, or none. Neither this nor the overlay redraws the chart, which is slow for thousands of
     tasks. */
  choose(seriesId, dataIndex) {
    if (!this.chart) return;
    if (this.chosen !== null) this.chart.dispatchAction({ type: "unselect", seriesId, dataIndex: this.chosen });
    if (dataIndex !== null) this.chart.dispatchAction({ type: "select", seriesId, dataIndex });
    this.chosen = dataIndex;
    this.drawOverlay();
  }

  /* Graphics drawn over the series; redrawn on every zoom. */
  overlay() {
    return [];
  }

  drawOverlay() {
    const draws = this.chart.getZr();
    if (this.layer) draws.remove(this.layer);
    this.layer = new echarts.graphic.Group({ silent: true });
    for (const shape of this.overlay()) this.layer.add(shape);
    this.layer.setClipPath(new echarts.graphic.Rect({ shape: this.area() }));
    draws.add(this.layer);
  }

  /* Position of the axes, in pixels. */
  area() {
    const { left, right, top, bottom } = this.margins;
    return {
      x: left,
      y: top,
      width: this.chart.getWidth() - left - right,
      height: this.chart.getHeight() - top - bottom,
    };
  }

  pixel(point) {
    return this.chart.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, point);
  }

  get width() {
    return this.box.clientWidth;
  }

  show(ranges) {
    const batch = Object.entries(ranges).map(([dataZoomId, [start, end]]) => ({ dataZoomId, start, end }));
    this.chart?.dispatchAction({ type: "dataZoom", batch });
  }

  fit() {
    this.show(Object.fromEntries(this.zooms.map((zoom) => [zoom, [0, 100]])));
  }

  zoomBy(factor) {
    this.show(Object.fromEntries(this.zooms.map((zoom) => [zoom, zoomed(this.view[zoom], factor)])));
  }

  moveBy(zoom, share) {
    if (zoom in this.view) this.show({ [zoom]: moved(this.view[zoom], share) });
  }

  /* Pan until this point, in percent of each axis, is visible. */
  reveal(places) {
    const ranges = {};
    for (const [zoom, at] of Object.entries(places)) {
      const [start, end] = this.view[zoom];
      if (at < start || at > end) ranges[zoom] = moved([start, end], (at - (start + end) / 2) / (end - start));
    }
    if (Object.keys(ranges).length) this.show(ranges);
  }

  onKey(event) {
    const action = {
      "+": () => this.zoomBy(ZOOM),
      "=": () => this.zoomBy(ZOOM),
      "-": () => this.zoomBy(1 / ZOOM),
      0: () => this.fit(),
      ArrowLeft: () => this.moveBy("x", -0.2),
      ArrowRight: () => this.moveBy("x", 0.2),
      ArrowUp: () => this.moveBy("y", this.down ? -0.2 : 0.2),
      ArrowDown: () => this.moveBy("y", this.down ? 0.2 : -0.2),
    }[event.key];
    if (action && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action();
    }
  }
}

function zoomed([start, end], factor) {
  const middle = (start + end) / 2;
  const half = Math.min(50, (end - start) / 2 / factor);
  return moved([middle - half, middle + half], 0);
}

/* A range in percent, moved by a fraction of its length and clamped to 0..100. */
function moved([start, end], share) {
  const length = end - start;
  const from = Math.min(Math.max(start + share * length, 0), 100 - length);
  return [from, from + length];
}

/* Zooming inside a chart: Ctrl and wheel, or two fingers, so that the page itself still scrolls. */
function insideZoom(id, extra) {
  return {
    id,
    type: "inside",
    filterMode: "none",
    zoomOnMouseWheel: "ctrl",
    moveOnMouseMove: true,
    moveOnMouseWheel: false,
    preventDefaultMouseMove: false,
    throttle: 30,
    ...extra,
  };
}
