"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const CLASSES = data.classes, NEGATIVES = data.negatives; // one of two classes, else one each
  const SEVERAL = CLASSES.length > 1;
  const PAGE = 200;

  // Small helpers for building elements; text never becomes markup.
  const el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("--")) node.style.setProperty(name, value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.filter((c) => c !== null && c !== undefined));
    return node;
  };
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const unit = (text) => (text ? Float32Array.from(new Uint16Array(bytes(text).buffer), (v) => v / 65535) : null);
  const fixed = (v, digits = 3) => (v === null || v === undefined ? "–" : v.toFixed(digits));
  const plusMinus = (p, s) => (s === null || s === undefined ? fixed(p) : `${fixed(p)} ± ${fixed(s, 2)}`);

  // Light to dark, so that the order survives gray printing and colour blindness.
  const HEAT = [[255, 244, 214], [250, 196, 112], [232, 120, 56], [186, 44, 60], [92, 16, 72]];
  const COLD = [[236, 245, 238], [160, 208, 190], [74, 150, 156], [34, 88, 128], [22, 34, 84]];
  const mix = (stops, t) => {
    const at = Math.max(0, Math.min(1, t)) * (stops.length - 1);
    const i = Math.min(stops.length - 2, Math.floor(at));
    return `rgb(${stops[i].map((v, k) => Math.round(v + (stops[i + 1][k] - v) * (at - i)))})`;
  };
  const gradient = (stops) => `linear-gradient(90deg,${[0, 0.25, 0.5, 0.75, 1].map((t) => mix(stops, t))})`;

  // Instances by bag number; whatever is predicted is a list over classes.
  const instances = new Map();
  if (data.instances) {
    const packed = data.instances;
    const p = packed.p.map(unit), std = packed.std && packed.std.map(unit);
    const xy = packed.xy ? new Float32Array(bytes(packed.xy).buffer) : null;
    const pixels = packed.images ? bytes(packed.images.pixels) : null;
    const per = packed.images ? packed.images.width * packed.images.height * packed.images.channels : 0;
    const numbers = packed.numbers ? new Uint32Array(bytes(packed.numbers).buffer) : null;
    let start = 0;
    packed.bags.forEach((bag, k) => {
      const stop = start + packed.sizes[k], from = start;
      instances.set(bag, {
        p: p.map((values) => values.subarray(from, stop)),
        std: std && std.map((values) => values.subarray(from, stop)),
        xy: xy && xy.subarray(2 * start, 2 * stop),
        patch: packed.patch ? packed.patch[k] : null,
        pixels: pixels && pixels.subarray(per * start, per * stop),
        number: (j) => (numbers ? numbers[from + j] : j),
        above: packed.above.map((counts) => counts[k]),
      });
      start = stop;
    });
  }

  // The table.
  const hasStd = data.std[0].some((v) => v !== null);
  const isWrong = (i) => data.truth !== null && data.truth.some((t, c) => t[i] >= 0 && t[i] !== data.called[c][i]);
  const isKnown = (i) => data.truth !== null && data.truth[0][i] >= 0;
  // The number of a bag's class, for sorting.
  const codeOf = (table, i) => table.reduce((code, column, c) => (column[i] > 0 ? c + 1 : code), table[0][i] < 0 ? -1 : 0);
  const columns = [
    { name: "bag", key: (i) => data.ids[i], text: true },
    ...CLASSES.map((name, c) => ({
      name: SEVERAL ? name : "probability",
      title: `probability that the bag is ${name}`,
      key: (i) => data.p[c][i],
      cell: (i) => probabilityCell(c, i),
    })),
    !SEVERAL && hasStd && { name: "± std", title: "standard deviation of the probability", key: (i) => data.std[0][i], small: true },
    { name: "called", key: (i) => codeOf(data.called, i), cell: (i) => el("td", {}, ...tags(data.called, i)) },
    data.truth && {
      name: "truth",
      key: (i) => codeOf(data.truth, i),
      cell: (i) => el("td", {}, ...(isKnown(i) ? tags(data.truth, i) : ["–"]),
        isWrong(i) ? el("span", { class: "wrong", title: "the model is wrong here" }, " ✗") : null),
    },
    { name: "size", title: "number of instances", key: (i) => data.n[i], small: true },
  ].filter(Boolean);
  const state = { column: 1, down: true, find: "", which: "all", shown: PAGE, open: null, seen: 0 };

  const tag = (name, positive) => el("span", { class: `tag ${positive ? "pos" : "neg"}` }, name);
  // What a bag is called or truly is: of two classes always one, of several maybe none.
  const tags = (table, i) => {
    if (!SEVERAL) return [table[0][i] ? tag(CLASSES[0], true) : tag(NEGATIVES[0], false)];
    const names = CLASSES.filter((_, c) => table[c][i] === 1).map((name) => tag(name, true));
    return names.length ? names : [tag("none", false)];
  };
  const probabilityCell = (c, i) => {
    const p = data.p[c][i];
    if (SEVERAL) return el("td", { class: "p", "--w": `${p ?? 0}` }, fixed(p));
    return el("td", {}, el("div", { class: "meter" }, fixed(p),
      el("i", { "--w": `${100 * (p ?? 0)}%`, "--c": p > data.threshold ? "var(--pos)" : "var(--neg)", "aria-hidden": "true" })));
  };

  const cell = (column, i) => {
    if (column.cell) return column.cell(i);
    const value = column.key(i);
    return el("td", column.small ? { class: "hide-small" } : {}, column.name === "size" ? value.toLocaleString("en") : fixed(value, 2));
  };

  const drawHead = () => {
    $("table").tHead.replaceChildren(el("tr", {}, ...columns.map((column, k) => {
      const sorted = k === state.column ? (state.down ? "descending" : "ascending") : "none";
      const button = el("button", { type: "button", title: column.title }, column.name);
      button.addEventListener("click", () => {
        state.down = k === state.column ? !state.down : !column.text;
        state.column = k;
        draw();
        $("table").tHead.rows[0].cells[k].firstChild.focus();
      });
      return el("th", { scope: "col", "aria-sort": sorted, class: column.small ? "hide-small" : null }, button);
    })));
  };

  const order = () => {
    const wanted = state.find.toLowerCase();
    const key = columns[state.column].key;
    const rows = data.ids.map((_, i) => i).filter((i) => {
      if (wanted && !data.ids[i].toLowerCase().includes(wanted)) return false;
      if (state.which === "neg") return data.called[0][i] === 0;
      if (state.which === "wrong") return isWrong(i);
      return state.which === "all" || data.called[Number(state.which)][i] === 1;
    });
    const sign = state.down ? -1 : 1;
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (typeof x === "string") return sign * x.localeCompare(y, "en", { numeric: true });
      return sign * ((x ?? -Infinity) - (y ?? -Infinity)) || a - b;
    };
    return rows.sort(compare);
  };

  const draw = () => {
    drawHead();
    const rows = order();
    $("count").textContent = `${rows.length.toLocaleString("en")} of ${data.ids.length.toLocaleString("en")} bags`;
    $("more").hidden = rows.length <= state.shown;
    $("table").tBodies[0].replaceChildren(...rows.slice(0, state.shown).map((i) => {
      const button = el("button", { type: "button" }, data.ids[i]);
      const row = el("tr", { "data-bag": i, "aria-current": i === state.open ? "true" : null },
        el("th", { scope: "row" }, button), ...columns.slice(1).map((column) => cell(column, i)));
      row.addEventListener("click", () => open(i, true));
      return row;
    }));
    return rows;
  };

  // One bag, and one class of its instances: at first the one that is most probable of the bag.
  const open = (i, move, seen) => {
    state.open = i;
    state.seen = seen ?? CLASSES.reduce((best, _, c) => (data.p[c][i] > data.p[best][i] ? c : best), 0);
    for (const row of $("table").tBodies[0].rows) {
      if (Number(row.dataset.bag) === i) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
    const c = state.seen, inst = instancesOf(i), std = data.std[c][i];
    const back = el("button", { type: "button", id: "back" }, "↑ All bags");
    back.addEventListener("click", returnToRow);
    const parts = [
      el("div", { class: "head" }, el("h3", {}, data.ids[i]), back),
      el("div", { class: "big" }, fixed(data.p[c][i]), std === null ? null : el("small", {}, ` ± ${fixed(std, 2)}`)),
      el("p", { class: "sub" }, "probability of ", SEVERAL ? classChoice(i) : CLASSES[0], "; called ", ...tags(data.called, i),
        ...(isKnown(i) ? [", truly ", ...tags(data.truth, i)] : [])),
    ];
    if (!inst) {
      parts.push(el("p", { class: "sub" }, data.instances ? "The instances of this bag are in instances.parquet." : "This model has no predictions of single instances."));
    } else {
      const shown = inst.p.length < data.n[i] ? ` ${inst.p.length.toLocaleString("en")} of them are shown: the most probable, and an even spread of the others.` : "";
      parts.push(el("p", { class: "sub" }, `${inst.above.toLocaleString("en")} of ${data.n[i].toLocaleString("en")} instances have a probability above one half.${shown}`));
      if (inst.xy) parts.push(...map(inst));
      if (inst.pixels) parts.push(gallery(inst));
      else parts.push(...bars(inst));
    }
    $("detail").replaceChildren(...parts);
    $("detail").scrollTop = 0;
    if (inst && inst.xy) paint(inst);
    if (!move) return;
    const narrow = matchMedia("(max-width:979px)").matches;
    if (narrow) $("detail").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion:reduce)").matches ? "auto" : "smooth" });
    ($("map") ?? $("detail")).focus({ preventScroll: true });
  };

  // The instances of a bag, with the predictions of the class that is looked at.
  const instancesOf = (i) => {
    const all = instances.get(i);
    return all && { ...all, p: all.p[state.seen], std: all.std && all.std[state.seen], above: all.above[state.seen] };
  };

  const classChoice = (i) => {
    const choice = el("select", { id: "seen", "aria-label": "class" }, ...CLASSES.map((name, c) => el("option", { value: c, selected: c === state.seen ? "" : null }, name)));
    choice.addEventListener("change", () => { open(i, false, Number(choice.value)); $("seen").focus(); });
    return choice;
  };

  // Escape, and the button on a phone, lead back to the row of the open bag.
  const returnToRow = () => {
    const row = document.querySelector(`#table tr[data-bag="${state.open}"] button`);
    (row ?? $("find")).focus({ preventScroll: true });
    (row ?? $("bags")).scrollIntoView({ block: "center" });
  };
  $("detail").addEventListener("keydown", (event) => { if (event.key === "Escape") returnToRow(); });

  const ranked = (inst) => Array.from(inst.p.keys()).sort((a, b) => inst.p[b] - inst.p[a]);
  const heat = (p) => mix(HEAT, p);

  // Instances as bars with whiskers of one standard deviation.
  const bars = (inst) => {
    const rows = ranked(inst);
    const list = el("ol", { class: "bars", "aria-label": "Instances by probability" });
    const add = (from, to) => list.append(...rows.slice(from, to).map((k) => {
      const p = inst.p[k], s = inst.std ? inst.std[k] : null;
      const track = el("span", { class: "bar-track", "aria-hidden": "true" }, el("b", { "--w": `${100 * p}%`, "--c": p > 0.5 ? "var(--pos)" : "var(--neg)" }));
      if (s !== null) {
        const low = Math.max(0, p - s), high = Math.min(1, p + s);
        track.append(el("u", { "--a": `${100 * low}%`, "--b": `${100 * (high - low)}%` }));
      }
      return el("li", {}, el("em", {}, `#${inst.number(k)}`), track, el("span", {}, plusMinus(p, s)));
    }));
    const first = inst.xy ? 10 : 40;
    add(0, first);
    const title = el("p", { class: "sub" }, inst.xy ? "The most probable instances:" : "Instances, the most probable first:");
    if (rows.length <= first) return [title, list];
    const more = el("button", { type: "button" }, `Show all ${rows.length.toLocaleString("en")}`);
    more.addEventListener("click", () => { add(first, Math.min(rows.length, 2000)); more.remove(); });
    return [title, list, more];
  };

  // Instances as pictures, positives framed.
  const gallery = (inst) => {
    const { width, height, channels } = data.instances.images;
    return el("ol", { class: "gallery", "aria-label": "Instances, the most probable first" }, ...ranked(inst).slice(0, 300).map((k) => {
      const canvas = el("canvas", { width, height, role: "img", "aria-label": `instance ${inst.number(k)}, probability ${plusMinus(inst.p[k], inst.std && inst.std[k])}` });
      const context = canvas.getContext("2d");
      const image = context.createImageData(width, height);
      for (let i = 0; i < width * height; i++) {
        for (let c = 0; c < 3; c++) image.data[4 * i + c] = inst.pixels[(k * width * height + i) * channels + (channels === 1 ? 0 : c)];
        image.data[4 * i + 3] = 255;
      }
      context.putImageData(image, 0, 0);
      return el("li", { class: inst.p[k] > 0.5 ? "hot" : null }, canvas, el("b", {}, fixed(inst.p[k], 2)),
        inst.std ? el("small", {}, `± ${fixed(inst.std[k], 2)}`) : null);
    }));
  };

  // Instances on their coordinates.
  const view = { pick: -1 };
  const map = (inst) => {
    view.pick = -1;
    const draw = (what, name) => {
      const label = `Map of the ${name} of the instances by their coordinates. Arrow keys go through them, the most probable first; Escape goes back to the table.`;
      const canvas = el("canvas", { id: what === "p" ? "map" : "map-std", tabindex: 0, role: "img", "aria-label": label });
      for (const type of ["pointermove", "pointerdown"]) canvas.addEventListener(type, (event) => pick(inst, nearest(inst, event)));
      canvas.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const rows = ranked(inst);
        const at = rows.indexOf(view.pick);
        pick(inst, rows[at < 0 ? 0 : (at + step + rows.length) % rows.length]);
      });
      const stops = what === "p" ? HEAT : COLD;
      // Both legends are in probability, and the same for every bag: a standard deviation of a probability is at most one half.
      const scale = el("div", { class: "scale" }, "0", el("i", { style: `background:${gradient(stops)}`, "aria-hidden": "true" }), what === "p" ? "1" : "0.5", el("span", {}, what === "p" ? `probability of ${CLASSES[state.seen]}` : "its standard deviation"));
      return el("div", { class: "map" }, canvas, scale);
    };
    return [
      el("div", { class: "maps" }, draw("p", "probability"), inst.std ? draw("std", "uncertainty") : ""),
      el("p", { class: "tip", id: "tip", "aria-live": "polite" }, "Point at an instance, or use the arrow keys."),
    ];
  };

  // The side of a square: given, or the commonest gap between neighbours.
  const side = (inst) => {
    if (inst.patch) return inst.patch;
    const gaps = new Map();
    for (const axis of [0, 1]) {
      const values = [...new Set(inst.xy.filter((_, k) => k % 2 === axis))].sort((a, b) => a - b);
      for (let k = 1; k < values.length; k++) gaps.set(values[k] - values[k - 1], (gaps.get(values[k] - values[k - 1]) ?? 0) + 1);
    }
    return [...gaps].sort((a, b) => b[1] - a[1])[0]?.[0] ?? 1;
  };

  const layout = (inst) => {
    if (inst.layout) return inst.layout;
    let [x0, y0, x1, y1] = [Infinity, Infinity, -Infinity, -Infinity];
    for (let k = 0; k < inst.p.length; k++) {
      x0 = Math.min(x0, inst.xy[2 * k]); x1 = Math.max(x1, inst.xy[2 * k]);
      y0 = Math.min(y0, inst.xy[2 * k + 1]); y1 = Math.max(y1, inst.xy[2 * k + 1]);
    }
    const size = side(inst);
    inst.layout = { x0, y0, size, width: x1 - x0 + size, height: y1 - y0 + size };
    return inst.layout;
  };

  const scaleOf = (inst, canvas) => {
    const { width, height } = layout(inst);
    return Math.min(canvas.clientWidth / width, (0.62 * Math.max(innerHeight, 500)) / height);
  };

  const paint = (inst) => {
    for (const [id, values, stops, top] of [["map", inst.p, HEAT, 1], ["map-std", inst.std, COLD, 0.5]]) if ($(id)) paintOne(inst, $(id), values, stops, top);
  };
  const paintOne = (inst, canvas, values, stops, top) => {
    const { x0, y0, size, width, height } = layout(inst);
    const scale = scaleOf(inst, canvas), ratio = devicePixelRatio || 1;
    const left = (canvas.clientWidth - width * scale) / 2;
    canvas.style.height = `${Math.max(40, height * scale)}px`;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = Math.max(40, height * scale) * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const cell = Math.max(1.5, size * scale);
    const gap = cell > 6 ? 1 : 0;
    const box = (k) => [left + (inst.xy[2 * k] - x0) * scale, (inst.xy[2 * k + 1] - y0) * scale, cell - gap, cell - gap];
    for (let k = 0; k < inst.p.length; k++) {
      context.fillStyle = mix(stops, values[k] / top);
      context.fillRect(...box(k));
    }
    if (view.pick >= 0) {
      context.strokeStyle = getComputedStyle(document.body).color;
      context.lineWidth = 3;
      const [x, y, w, h] = box(view.pick);
      context.strokeRect(x - 1, y - 1, w + 2, h + 2);
    }
  };

  const nearest = (inst, event) => {
    const canvas = event.target, { x0, y0, size, width } = layout(inst), scale = scaleOf(inst, canvas);
    const x = (event.offsetX - (canvas.clientWidth - width * scale) / 2) / scale + x0 - size / 2;
    const y = event.offsetY / scale + y0 - size / 2;
    let best = -1, distance = size * size * 2;
    for (let k = 0; k < inst.p.length; k++) {
      const d = (inst.xy[2 * k] - x) ** 2 + (inst.xy[2 * k + 1] - y) ** 2;
      if (d < distance) [best, distance] = [k, d];
    }
    return best;
  };

  const pick = (inst, k) => {
    if (k === view.pick || k < 0) return;
    view.pick = k;
    $("tip").textContent = `instance ${inst.number(k)} at (${inst.xy[2 * k]}, ${inst.xy[2 * k + 1]}): ${plusMinus(inst.p[k], inst.std && inst.std[k])}`;
    paint(inst);
  };

  // Right and wrong at a threshold, of the class whose figures are shown.
  let figures = 0;
  const confusion = () => {
    if (!$("threshold")) return;
    const at = Number($("threshold").value), { y: truth, p } = data.evaluation;
    const n = { tp: 0, fp: 0, tn: 0, fn: 0 };
    truth[figures].forEach((y, i) => { n[p[figures][i] > at ? (y ? "tp" : "fp") : (y ? "fn" : "tn")] += 1; });
    for (const [name, value] of Object.entries(n)) $(name).textContent = value.toLocaleString("en");
    $("at").textContent = at.toFixed(2);
    const share = (a, b) => {
      const total = a + b;
      if (!total) return "–";
      // Wilson's interval, as in the tables.
      const z2 = 1.959963984540054 ** 2, q = a / total;
      const middle = (q + z2 / (2 * total)) / (1 + z2 / total);
      const half = Math.sqrt(z2 * ((q * (1 - q)) / total + z2 / (4 * total * total))) / (1 + z2 / total);
      return `${Math.round(100 * q)} % (${Math.round(100 * (middle - half))}–${Math.round(100 * (middle + half))})`;
    };
    $("rates").textContent = `Finds ${share(n.tp, n.fn)} of the ${CLASSES[figures]} bags; ${share(n.tn, n.fp)} of the ${NEGATIVES[figures]} bags are left alone.`;
  };
  const choices = [...document.querySelectorAll("[data-choice]")];
  const choose = (value) => {
    figures = Number(value);
    for (const choice of choices) choice.value = value;
    for (const group of document.querySelectorAll("[data-class]")) group.hidden = group.dataset.class !== value;
    const names = { positive: CLASSES[figures], negative: NEGATIVES[figures] };
    for (const node of document.querySelectorAll("[data-name]")) node.textContent = names[node.dataset.name];
    confusion();
  };
  for (const choice of choices) choice.addEventListener("change", () => choose(choice.value));

  const which = CLASSES.map((name, c) => [`${c}`, `called ${name}`]);
  if (!SEVERAL) which.push(["neg", `called ${NEGATIVES[0]}`]);
  if (data.truth) which.push(["wrong", "wrong ones"]);
  $("which").append(...which.map(([value, name]) => el("option", { value }, name)));
  $("which").addEventListener("change", () => { state.which = $("which").value; state.shown = PAGE; draw(); });
  $("find").addEventListener("input", () => { state.find = $("find").value; state.shown = PAGE; draw(); });
  $("more").addEventListener("click", () => { state.shown += 5 * PAGE; draw(); });
  $("threshold")?.addEventListener("input", confusion);
  addEventListener("resize", () => { const inst = instancesOf(state.open); if (inst?.xy) paint(inst); });
  const rows = draw();
  if (rows.length) open(rows[0], false);
  if (choices.length) choose(choices[0].value);
  else confusion();
})();
