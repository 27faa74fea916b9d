"use strict";
/* Puts the page together: which plan, which times, which task is chosen. */

class Page {
  constructor() {
    const select = (k) => this.select(k);
    this.graph = new GraphView(select);
    this.timeline = new TimelineView(select);
    this.memory = new MemoryView();
    this.ops = new OpsTable();
    this.models = TRACE.plans.map((plain) => new PlanModel(plain));
    this.timeline.onView = () => this.follow(this.timeline, this.memory);
    this.memory.onView = () => this.follow(this.memory, this.timeline);
    this.listen();
    const made = new Date(TRACE.made).toLocaleString();
    document.getElementById("made").textContent =
      `Made by distgrad ${TRACE.version} of a trace of ${made}. Drawn with Apache ECharts, laid out by d3-dag.`;
    this.open(mainPlan(TRACE.plans));
  }

  listen() {
    const plan = document.getElementById("plan");
    plan.append(
      ...this.models.map((model, i) =>
        el("option", { value: i }, `${model.plain.name} (${counted(model.tasks.length, "task")})`),
      ),
    );
    plan.addEventListener("change", () => this.open(Number(plan.value)));
    document.getElementById("choose-plan").hidden = this.models.length < 2;
    document.getElementById("mode").addEventListener("change", (event) => this.redraw(event.target.value));
    const find = document.getElementById("find");
    let typing = 0;
    find.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.find(find.value), 200);
    });
    find.addEventListener("keydown", (event) => event.key === "Enter" && this.next());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.select(null));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw(this.mode));
    let waiting = 0;
    let width = innerWidth;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      if (innerWidth !== width)
        waiting = setTimeout(() => {
          width = innerWidth;
          this.redraw(this.mode);
        }, 150);
    });
  }

  async open(index) {
    const model = (this.model = this.models[index]);
    this.mode = model.modes[0];
    this.selected = null;
    document.documentElement.dataset.ready = "false";
    document.getElementById("plan").value = index;
    document.getElementById("find").value = "";
    for (const input of document.querySelectorAll("#mode input")) {
      input.checked = input.value === this.mode;
      input.disabled = !model.modes.includes(input.value);
    }
    document.title = `${model.plain.name} - distgrad report`;
    document.getElementById("title").textContent = model.plain.name;
    document.getElementById("subtitle").textContent = subtitle(model);
    document.getElementById("figures").replaceChildren(...figures(model));
    document.getElementById("again").replaceChildren(...againBox(model, (k) => this.select(k)));
    const colours = theme();
    this.ops.open(model);
    this.timeline.open(model, this.mode, colours);
    this.memory.open(model, this.mode, colours);
    this.say();
    this.find("");
    this.select(null);
    await this.graph.open(model, this.mode, colours);
    if (model === this.model) document.documentElement.dataset.ready = "true";
  }

  redraw(mode) {
    this.mode = mode;
    const colours = theme();
    for (const view of [this.timeline, this.memory, this.graph]) view.redraw(mode, colours);
    this.say();
    if (this.selected !== null) this.select(this.selected);
  }

  /* Texts that depend on what is shown. */
  say() {
    const kinds = [];
    if (this.model.tasks.some((task) => task.kind === "reduce"))
      kinds.push(el("span", {}, symbol("hexagon"), "reduce task"));
    if (this.model.edges.some((edge) => edge.barrier))
      kinds.push(el("span", {}, symbol("barrier"), "barrier: waits, reads nothing"));
    const times = this.model.times(this.mode);
    const used = [...new Set(times.worker)].sort((a, b) => a - b);
    const workers = used.slice(0, 12).map((w) => el("span", {}, symbol("box", workerColour(w)), times.places[w]));
    const more = used.length > 12 ? [el("span", {}, `and ${used.length - 12} more`)] : [];
    document.getElementById("legend").replaceChildren(...workers, ...more, ...kinds);
    const how = "Ctrl and wheel, or two fingers, to zoom; drag to move; click a task to choose it.";
    document.getElementById("graph-hint").textContent = `Lines are what tasks hand on, thicker for more bytes. ${how}`;
    const when = this.mode === "measured" ? "As measured in the last run." : "As simulated before the run.";
    document.getElementById("timeline-hint").textContent = `${when} Reduce tasks are narrow and framed. ${how}`;
    document.getElementById("memory-hint").textContent = this.memory.hint();
  }

  select(k) {
    const changed = this.selected !== k;
    this.selected = k;
    const details = document.getElementById("details");
    details.hidden = k === null;
    details.replaceChildren(...(k === null ? [] : detailsOf(this.model, k, (j) => this.select(j))));
    if (!changed && k === null) return;
    this.graph.select(k);
    this.timeline.select(k);
  }

  find(text) {
    const found = this.model.find(text);
    this.found = found;
    const matches = text.trim() === "" ? null : new Set(found);
    document.getElementById("found").textContent = matches ? counted(found.length, "task") : "";
    if (matches === null && !this.marked) return;
    this.marked = matches !== null;
    this.graph.mark(matches);
    this.timeline.mark(matches);
  }

  next() {
    if (!this.found.length) return;
    const after = this.found.find((k) => k > (this.selected ?? -1));
    this.select(after ?? this.found[0]);
  }

  /* Timeline and memory show the same part of the run. */
  follow(from, to) {
    const [a, b] = [from.view.x, to.view.x];
    if (Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]) > 1e-6) to.show({ x: a });
  }
}

/* Small drawings for the legend. */
function symbol(kind, colour) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const shapes = {
    box: ["rect", { x: 1, y: 2, width: 14, height: 8, rx: 2, fill: colour }],
    hexagon: [
      "polygon",
      { points: "1,6 4,1 13,1 16,6 13,11 4,11", fill: "none", stroke: "currentColor", "stroke-width": 1.5 },
    ],
    barrier: [
      "line",
      { x1: 0, y1: 6, x2: 18, y2: 6, stroke: "var(--barrier)", "stroke-width": 2, "stroke-dasharray": "4 3" },
    ],
  };
  const [tag, attributes] = shapes[kind];
  const shape = document.createElementNS(svg.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
  for (const [name, value] of Object.entries({ width: 18, height: 12, "aria-hidden": "true" }))
    svg.setAttribute(name, value);
  svg.append(shape);
  return svg;
}

const page = new Page();
