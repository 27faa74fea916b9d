"use strict";
/* Memory over time: planned memory of each worker, resident memory of its process, and the budget. */

const MOST_LINES = 8;
/* A budget above this multiple of the peak would flatten the lines, so it is drawn only on request. */
const FAR = 4;
/* Resident memory is sampled at the ends of tasks; up to this number of samples are also drawn as points. */
const FEW_POINTS = 4;

class MemoryView extends Chart {
  constructor() {
    super("memory", ["x"]);
    this.boxes = { resident: document.getElementById("show-resident"), budget: document.getElementById("show-budget") };
    for (const box of Object.values(this.boxes))
      box.addEventListener("change", () => this.redraw(this.mode, this.colours));
  }

  open(model, mode, colours) {
    this.model = model;
    const { budget } = model.plain;
    this.boxes.budget.checked =
      budget !== null && budget <= FAR * Math.max(1, ...model.modes.map((each) => model.peak(each)));
    document.getElementById("choose-budget").hidden = budget === null;
    this.redraw(mode, colours);
  }

  redraw(mode, colours) {
    Object.assign(this, { mode, colours, times: this.model.times(mode) });
    const resident = this.times.resident?.some((line) => line.length) ?? false;
    document.getElementById("choose-resident").hidden = !resident;
    const span = this.model.span(mode);
    const narrow = this.width < 560;
    this.start(
      {
        ...baseOption(colours, null),
        tooltip: {
          ...baseOption(colours, (list) => this.tip(list)).tooltip,
          trigger: "axis",
          axisPointer: { lineStyle: { color: colours.soft } },
        },
        legend: {
          type: "scroll",
          top: 6,
          left: 0,
          textStyle: { color: colours.soft },
          pageTextStyle: { color: colours.soft },
          icon: "roundRect",
          itemWidth: 14,
          itemHeight: 10,
          inactiveColor: colours.line,
        },
        grid: { left: narrow ? 62 : 84, right: 14, top: 42, bottom: 30 },
        xAxis: axis(colours, {
          type: "value",
          min: 0,
          max: span,
          axisLabel: { color: colours.soft, formatter: tickText, hideOverlap: true, showMaxLabel: false },
          splitLine: { show: false },
        }),
        yAxis: axis(colours, {
          type: "value",
          min: 0,
          max: this.top(),
          interval: this.top() / 4,
          axisLabel: { color: colours.soft, formatter: bytesText },
        }),
        dataZoom: [insideZoom("x", { xAxisIndex: 0, minSpan: 0.01 })],
        series: this.series(span, resident && this.boxes.resident.checked),
      },
      280,
    );
  }

  /* The places to draw: those with the highest peaks. */
  shown() {
    const peaks = this.times.memory.map((line) => peakOf([line]));
    const order = peaks.map((_, i) => i).filter((i) => this.times.memory[i].length);
    return order
      .sort((a, b) => peaks[b] - peaks[a])
      .slice(0, MOST_LINES)
      .sort((a, b) => a - b);
  }

  top() {
    const { budget } = this.model.plain;
    const lines =
      this.boxes.resident.checked && this.times.resident ? this.shown().map((i) => this.times.resident[i]) : [];
    const most = Math.max(this.model.peak(this.mode), peakOf(lines), this.boxes.budget.checked ? (budget ?? 0) : 0, 1);
    return nice(most * 1.06);
  }

  series(span, resident) {
    const made = this.shown().flatMap((i) => {
      const color = workerColour(i);
      const name = this.times.places[i];
      const common = { type: "line", name, showSymbol: false, z: 3, emphasis: { disabled: true } };
      const held = {
        ...common,
        id: `held-${i}`,
        step: "end",
        sampling: "max",
        data: [...this.times.memory[i], [span, this.times.memory[i].at(-1)[1]]],
        lineStyle: { color, width: 2 },
        itemStyle: { color },
      };
      const line = resident ? this.times.resident[i] : [];
      if (!line.length) return [held];
      const seen = {
        ...common,
        id: `resident-${i}`,
        showSymbol: line.length < FEW_POINTS,
        symbolSize: 5,
        step: "end",
        sampling: "max",
        data: [...line, [span, line.at(-1)[1]]],
        lineStyle: { color, width: 1.5, type: "dotted" },
        itemStyle: { color },
      };
      return [held, seen];
    });
    return this.boxes.budget.checked ? [...made, this.budget(span)] : made;
  }

  budget(span) {
    const { colours } = this;
    const at = this.model.plain.budget;
    return {
      id: "budget",
      name: "budget",
      type: "line",
      showSymbol: false,
      silent: true,
      z: 2,
      data: [
        [0, at],
        [span, at],
      ],
      lineStyle: { color: colours.barrier, width: 1.5, type: "dashed" },
      itemStyle: { color: colours.barrier },
      emphasis: { disabled: true },
    };
  }

  tip(list) {
    const facts = list.map((p) => [
      String(p.seriesId).startsWith("resident") ? `${p.seriesName}, resident` : p.seriesName,
      bytesText(p.data[1]),
    ]);
    return el("div", {}, el("strong", {}, timeText(list[0].axisValue)), factList(facts));
  }

  hint() {
    const { budget } = this.model.plain;
    const places = this.times.memory.filter((line) => line.length).length;
    const shown = this.shown().length;
    const what = "Lines: bytes of values that the plan holds on each worker, ";
    const how =
      this.mode === "measured"
        ? "at measured times. Dotted: resident memory of its process, including Python and libraries."
        : "as simulated.";
    const some = shown < places ? ` Shows the ${shown} of ${places} workers with the highest peaks.` : "";
    const far = budget === null ? "" : ` A run may allocate ${bytesText(budget)} on one worker (budget).`;
    return what + how + some + far;
  }
}

/* Round a number of bytes up to a round number of its unit, so that ticks are round too. */
function nice(bytes) {
  const unit = 1024 ** Math.floor(Math.log2(bytes) / 10);
  const n = bytes / unit;
  const digit = 10 ** Math.floor(Math.log10(n));
  const step = [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].find((each) => each * digit >= n);
  return step * digit * unit;
}
