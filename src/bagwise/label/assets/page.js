"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  // Text never becomes markup: elements are made here and filled with text nodes.
  const el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("--")) node.style.setProperty(name, value);
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.filter((c) => c !== null && c !== undefined));
    return node;
  };
  const svg = (tag, attributes = {}, text = null) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    return node;
  };
  const fixed = (v, digits = 2) => v.toFixed(digits);
  const HEAT = [[255, 244, 214], [250, 196, 112], [232, 120, 56], [186, 44, 60], [92, 16, 72]];
  const heat = (t) => {
    const at = Math.max(0, Math.min(1, t)) * (HEAT.length - 1);
    const i = Math.min(HEAT.length - 2, Math.floor(at));
    return `rgb(${HEAT[i].map((v, k) => Math.round(v + (HEAT[i + 1][k] - v) * (at - i)))})`;
  };

  // A tab is known by a name of its own, so that two tabs get different questions.
  const tab = sessionStorage.getItem("tab") || crypto.randomUUID();
  sessionStorage.setItem("tab", tab);

  let state = null;
  let queue = [];
  const answered = new Set(); // rows answered in this tab
  let bag = null;
  let unsaved = 0;

  // The server.
  class Refused extends Error {}
  const api = async (path, body) => {
    const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
    const response = await fetch(path, options);
    const answer = await response.json();
    if (!response.ok) throw Object.assign(new Refused(answer.error), { status: response.status });
    return answer;
  };
  const banner = (text) => { $("banner").textContent = text || ""; $("banner").hidden = !text; };
  const say = (text, kind = "") => { $("status").textContent = text; $("status").className = `status ${kind}`; };

  // What is sent is sent in order, and again until the server has it or refuses it.
  let line = Promise.resolve();
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const send = (path, body) => {
    const work = async () => {
      for (;;) {
        try {
          const answer = await api(path, body);
          banner("");
          return answer;
        } catch (error) {
          if (error instanceof Refused) throw error;
          banner("The server does not answer: the last answer is not saved. It is sent again until the server is back; keep this page open.");
          say("not saved");
          await wait(1500);
        }
      }
    };
    const result = line.then(work);
    line = result.catch(() => {});
    return result;
  };

  // The question.
  const showQuestion = () => {
    const card = queue[0];
    for (const id of ["yes", "no", "skip"]) $(id).disabled = !card;
    if (!state) return;
    if (!card) {
      $("ask").textContent = "Nothing is open";
      $("where").textContent = "Every instance that could be asked about has an answer, or was skipped.";
      $("subject").replaceChildren();
      $("belief").replaceChildren();
      return;
    }
    $("ask").replaceChildren("Is this ", el("span", { class: "tag pos" }, state.classes[1]), "?");
    $("where").textContent = `${card.bag}, instance ${card.index}${card.answer ? `; answered ${card.answer}` : ""}`;
    $("subject").replaceChildren(card.picture ? picture(card.row, `${card.bag}, instance ${card.index}`) : neighbours(card.neighbours));
    const low = Math.max(0, card.p - card.std), high = Math.min(1, card.p + card.std);
    const words = `The model's probability is ${fixed(card.p)}, plus or minus ${fixed(card.std)}.`;
    $("belief").replaceChildren(
      el("div", { class: "numbers" }, el("b", {}, fixed(card.p)), el("span", {}, `± ${fixed(card.std)} probability of ${state.classes[1]}`)),
      el("div", { class: "track", role: "img", "aria-label": words, "--p": `${100 * card.p}%`, "--a": `${100 * low}%`, "--b": `${100 * (high - low)}%` }, el("u"), el("i")),
    );
    if (bag === null || bag.number !== card.bag_number) openBag(card.bag_number);
    else markCurrent();
  };
  const picture = (row, alt) => {
    const image = el("img", { src: `/api/pictures/${row}`, alt, loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => image.replaceWith(el("p", { class: "sub" }, "no picture")));
    return image;
  };
  const neighbours = (near) => {
    const parts = ["yes", "no"].map((answer) => {
      const other = near[answer];
      const title = el("h3", {}, `Nearest known ${answer}`);
      if (!other) return el("section", {}, title, el("p", { class: "sub" }, `Nothing is known to be ${answer} yet.`));
      const rows = other.features.map((f) => el("tr", {}, el("th", { scope: "row" }, f.name), el("td", {}, String(f.here)), el("td", {}, String(f.there))));
      return el("section", {}, title, el("p", { class: "sub" }, `${other.bag}, instance ${other.index}; ${other.distance} standard deviations away`),
        el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "differs most in"), el("th", { scope: "col" }, "here"), el("th", { scope: "col" }, "there"))), el("tbody", {}, ...rows)));
    });
    return el("div", { class: "near" }, ...parts);
  };

  const refill = async () => {
    const keep = queue.length ? `&keep=${queue[0].row}` : "";
    const cards = await api(`/api/queue?tab=${encodeURIComponent(tab)}&n=4${keep}`);
    const current = queue[0];
    // An answer may have been given while the request was under way; it is not asked again.
    const open = cards.filter((card) => !answered.has(card.row));
    queue = current ? [current, ...open.filter((card) => card.row !== current.row)] : open;
    showQuestion();
  };

  const answer = async (what) => {
    const card = queue.shift();
    if (!card) return;
    answered.add(card.row);
    unsaved += 1;
    say("saving", "busy");
    showQuestion();
    try {
      await save(card, what, false);
    } catch (error) {
      if (error.status === 409 && confirm(`${error.message} Replace that answer by ${what}?`)) await save(card, what, true).catch((again) => banner(again.message));
      else if (error.status !== 409) { answered.delete(card.row); banner(error.message); }
    } finally {
      unsaved -= 1;
    }
    if (unsaved === 0) await after();
  };
  const save = async (card, what, replace) => {
    const told = await send("/api/answer", { row: card.row, answer: what, tab, id: crypto.randomUUID(), replace });
    setState(told);
    if (bag && bag.number === card.bag_number) {
      bag.answers[card.index] = what;
      markAnswer(card.index, what);
    }
    if (unsaved <= 1) say(`saved to ${told.out}`, "saved");
  };
  const after = async () => {
    try {
      await refill();
      await refreshBag();
    } catch (error) {
      banner(error instanceof Refused ? error.message : "The server does not answer. Start bagwise label again; what it had saved is kept.");
    }
  };
  const undo = async () => {
    try {
      const told = await send("/api/undo", { tab });
      setState(told.state);
      if (!told.card) { say("nothing to undo in this tab"); return; }
      answered.delete(told.card.row);
      queue = [told.card, ...queue.filter((card) => card.row !== told.card.row)];
      say("taken back", "saved");
      showQuestion();
      await refreshBag();
    } catch (error) { banner(error.message); }
  };

  // The bag.
  // Answers may come back in another order than they were asked for; only the last request counts.
  let asked = 0;
  const openBag = async (number) => {
    const mine = ++asked;
    const found = await api(`/api/bags/${number}`);
    if (mine !== asked) return;
    bag = found;
    drawBag();
  };
  const refreshBag = async () => { if (bag) await openBag(queue.length ? queue[0].bag_number : bag.number); };
  const ask = (index) => {
    const row = bag.first + index;
    const card = { row, bag: bag.bag, bag_number: bag.number, index, p: bag.instance[index], std: bag.instance_std[index], answer: bag.answers[index], picture: bag.picture, neighbours: { yes: null, no: null } };
    queue = [card, ...queue.filter((other) => other.row !== row)];
    showQuestion();
    $("question").focus({ preventScroll: false });
  };
  const threshold = () => Number($("threshold").value);
  const drawBag = () => {
    $("bag-title").replaceChildren(bag.bag, " ", bag.label === null ? "" : el("span", { class: `tag ${bag.label === state.classes[1] ? "pos" : "neg"}` }, bag.label));
    const above = bag.instance.filter((p) => p >= threshold()).length;
    $("bag-about").textContent = `${bag.instance.length.toLocaleString("en")} instances, ${above.toLocaleString("en")} from probability ${fixed(threshold())}; the bag itself ${fixed(bag.p)} ± ${fixed(bag.std)}`;
    if (bag.xy) drawMap();
    else drawThumbs();
    for (const row of $("bags").tBodies[0].rows) {
      if (Number(row.dataset.bag) === bag.number) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  };
  const MOST = 600;
  const name = (k) => `instance ${k}, probability ${fixed(bag.instance[k])}${bag.answers[k] ? `, answered ${bag.answers[k]}` : ""}`;
  const thumb = (k) => {
    const button = el("button", { type: "button", class: `thumb ${bag.answers[k] || ""}`, "data-index": k, "aria-label": name(k), title: name(k), "--c": heat(bag.instance[k]), onclick: () => ask(k) },
      bag.picture ? picture(bag.first + k, "") : el("span", { class: "plain" }, `#${k}`), el("b", {}, fixed(bag.instance[k])));
    return el("li", {}, button);
  };
  const drawThumbs = () => {
    const shown = bag.instance.map((_, k) => k).slice(0, MOST);
    const more = bag.instance.length > MOST ? el("p", { class: "sub" }, `The first ${MOST} are shown.`) : null;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.index : undefined;
    $("bag-view").replaceChildren(...[el("div", { class: "bag-scroll", tabindex: 0, role: "region", "aria-label": "Instances of the bag" }, el("ol", { class: "thumbs" }, ...shown.map(thumb))), more].filter(Boolean));
    if (focused !== undefined) $("bag-view").querySelector(`[data-index="${Number(focused)}"]`)?.focus({ preventScroll: true });
    markCurrent();
  };
  const markAnswer = (index, what) => {
    const button = $("bag-view").querySelector(`[data-index="${index}"]`);
    if (button) { button.className = `thumb ${what}`; button.setAttribute("aria-label", name(index)); }
  };
  const markCurrent = () => {
    if (!bag) return;
    if (bag.xy) { paint(); return; }
    for (const button of $("bag-view").querySelectorAll(".thumb")) {
      const k = Number(button.dataset.index);
      button.parentElement.classList.toggle("below", bag.instance[k] < threshold());
      button.parentElement.classList.toggle("now", queue.length > 0 && queue[0].row === bag.first + k);
    }
  };

  // A map, where instances have coordinates.
  let view = null;
  const drawMap = () => {
    const canvas = el("canvas", { role: "img", "aria-label": `Map of ${bag.bag}: every patch coloured by its probability` });
    const tip = el("p", { class: "tip", "aria-live": "off" }, "Choose a patch to be asked about it.");
    const top = bag.instance.map((_, k) => k).sort((a, b) => bag.instance[b] - bag.instance[a]).slice(0, 12);
    $("bag-view").replaceChildren(el("div", { class: "map" }, canvas), tip, el("p", { class: "sub" }, "The most probable:"), el("ol", { class: "thumbs" }, ...top.map(thumb)));
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      const x = (event.clientX - box.left) / view.scale + view.left, y = (event.clientY - box.top) / view.scale + view.top;
      return bag.xy.findIndex(([a, b]) => x >= a && x < a + view.side && y >= b && y < b + view.side);
    };
    canvas.addEventListener("mousemove", (event) => { const k = at(event); tip.textContent = k < 0 ? "Choose a patch to be asked about it." : `${name(k)} ± ${fixed(bag.instance_std[k])}, at x ${bag.xy[k][0]}, y ${bag.xy[k][1]}`; });
    canvas.addEventListener("click", (event) => { const k = at(event); if (k >= 0) ask(k); });
    paint();
  };
  const spacing = () => {
    const xs = [...new Set(bag.xy.map(([x]) => x))].sort((a, b) => a - b);
    const gaps = xs.slice(1).map((x, i) => x - xs[i]).filter((gap) => gap > 0);
    return gaps.length ? Math.min(...gaps) : 1;
  };
  const paint = () => {
    const canvas = $("bag-view").querySelector("canvas");
    if (!canvas) return;
    const side = bag.patch || spacing();
    const xs = bag.xy.map(([x]) => x), ys = bag.xy.map(([, y]) => y);
    const low = (v) => v.reduce((a, b) => Math.min(a, b)), high = (v) => v.reduce((a, b) => Math.max(a, b));
    const left = low(xs) - side / 2, top = low(ys) - side / 2, width = high(xs) + 1.5 * side - left, height = high(ys) + 1.5 * side - top;
    const css = canvas.parentElement.clientWidth;
    const scale = Math.min(css / width, 520 / height);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(css * ratio);
    canvas.height = Math.round(height * scale * ratio);
    canvas.style.setProperty("height", `${height * scale}px`);
    view = { left: left - (css / scale - width) / 2, top, scale, side };
    const draw = canvas.getContext("2d");
    draw.scale(ratio, ratio);
    const ink = getComputedStyle(document.documentElement);
    bag.xy.forEach(([x, y], k) => {
      const a = (x - view.left) * scale, b = (y - view.top) * scale, s = Math.max(1.5, side * scale - 0.5);
      draw.globalAlpha = bag.instance[k] >= threshold() ? 1 : 0.3;
      draw.fillStyle = heat(bag.instance[k]);
      draw.fillRect(a, b, s, s);
      draw.globalAlpha = 1;
      const said = bag.answers[k] === "yes" ? "--pos" : bag.answers[k] === "no" ? "--neg" : null;
      const now = queue.length > 0 && queue[0].row === bag.first + k;
      if (said || now) {
        draw.lineWidth = now ? 3 : 2;
        draw.strokeStyle = ink.getPropertyValue(now ? "--accent" : said);
        draw.strokeRect(a + 1, b + 1, s - 2, s - 2);
      }
    });
  };

  // The list of bags.
  const drawBags = async () => {
    const rows = await api("/api/bags");
    const most = Math.max(1e-9, ...rows.map((row) => row.undecided));
    $("bags").tBodies[0].replaceChildren(...rows.slice(0, 500).map((row) =>
      el("tr", { "data-bag": row.number, "aria-current": bag && bag.number === row.number ? "true" : null },
        el("th", { scope: "row" }, el("button", { type: "button", onclick: () => openBag(row.number) }, row.bag)),
        el("td", {}, row.label === null ? "–" : el("span", { class: `tag ${row.label === state.classes[1] ? "pos" : "neg"}` }, row.label)),
        el("td", {}, el("div", { class: "meter" }, el("i", { "--w": `${(90 * row.undecided) / most}px`, "aria-hidden": "true" }), fixed(row.undecided, 1))),
        el("td", {}, row.yes + row.no ? `${row.yes} yes, ${row.no} no` : "–"))));
  };

  // Counts, learning, the curve.
  const setState = (next) => {
    const before = state;
    state = next;
    $("counts").replaceChildren(...[["yes", state.n_yes], ["no", state.n_no], ["skipped", state.n_skip], ["open", state.n_open]].map(([what, n]) => el("span", {}, el("b", {}, n.toLocaleString("en")), what)));
    $("undo").disabled = state.n_yes + state.n_no + state.n_skip === 0;
    const busy = state.learning !== null;
    $("learn").disabled = busy;
    $("progress").hidden = !busy;
    if (busy) $("progress").value = state.learning;
    if (document.activeElement !== $("auto")) {
      if (![...$("auto").options].some((option) => Number(option.value) === state.auto)) $("auto").append(el("option", { value: state.auto }, `${state.auto} answers`));
      $("auto").value = String(state.auto);
    }
    $("learned").textContent = busy ? "Learning from all answers; you can go on answering." : state.error ? `Learning failed: ${state.error}` : `${state.since} new since the last learning. Each answer counts at once; learning goes over all bags.`;
    if (!before || before.curve.length !== state.curve.length) drawCurve();
    if (busy && !watching) watch();
  };
  let watching = false;
  const watch = async () => {
    watching = true;
    try {
      while (state.learning !== null) {
        await wait(400);
        setState(await api("/api/state"));
      }
      await Promise.all([refill(), refreshBag(), drawBags()]);
      if (unsaved === 0) say("learned", "saved");
    } catch (error) {
      banner(error instanceof Refused ? error.message : "The server does not answer. Start bagwise label again; what it had saved is kept.");
    } finally { watching = false; }
  };
  const learn = async () => {
    try { setState(await send("/api/learn", {})); } catch (error) { banner(error.message); }
  };
  const chart = (title, series, words) => {
    const W = 300, H = 170, pad = { left: 40, right: 12, top: 10, bottom: 34 };
    const points = series.flatMap((s) => s.points);
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const x1 = Math.max(10, ...xs), x0 = 0;
    let y0 = Math.min(...ys), y1 = Math.max(...ys);
    const room = Math.max(0.01, 0.15 * (y1 - y0));
    y0 -= room; y1 += room;
    const X = (v) => pad.left + ((v - x0) / (x1 - x0)) * (W - pad.left - pad.right);
    const Y = (v) => H - pad.bottom - ((v - y0) / (y1 - y0)) * (H - pad.top - pad.bottom);
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": words });
    for (const t of [0, 0.5, 1]) {
      const v = y0 + t * (y1 - y0);
      picture.append(svg("line", { x1: pad.left, x2: W - pad.right, y1: Y(v), y2: Y(v), class: "grid" }), svg("text", { x: pad.left - 6, y: Y(v) + 4, "text-anchor": "end" }, v.toFixed(3)));
    }
    for (const v of [0, Math.round(x1 / 2), x1]) picture.append(svg("text", { x: X(v), y: H - 18, "text-anchor": "middle" }, String(v)));
    picture.append(svg("text", { x: (W + pad.left) / 2, y: H - 3, "text-anchor": "middle" }, "answers"));
    series.forEach((s, k) => {
      const two = k ? " two" : "";
      picture.append(svg("polyline", { class: `line${two}`, points: s.points.map(([a, b]) => `${X(a)},${Y(b)}`).join(" ") }));
      for (const [a, b] of s.points) picture.append(svg("circle", { class: `dot${two}`, cx: X(a), cy: Y(b), r: 3 }));
    });
    return el("figure", { class: "chart" }, el("h3", {}, title), picture);
  };
  const drawCurve = () => {
    const of = (key) => state.curve.filter((p) => p[key] !== undefined).map((p) => [p.n, p[key]]);
    const auc = of("auc"), loss = of("log_loss"), inst = of("instance_auc");
    if (!auc.length) {
      $("curve").replaceChildren(el("p", { class: "sub" }, "Held-out figures appear once there are answers of both kinds."));
      return;
    }
    const last = state.curve[state.curve.length - 1];
    const series = [{ points: auc }, ...(inst.length ? [{ points: inst }] : [])];
    const key = inst.length ? el("p", { class: "sub" }, el("i", { class: "key" }), "bags", el("i", { class: "key two" }), "instances") : null;
    const words = `Held-out AUC went from ${auc[0][1]} to ${auc[auc.length - 1][1]} over ${last.n} answers.`;
    const worse = `Held-out log-loss went from ${loss[0][1]} to ${loss[loss.length - 1][1]} over ${last.n} answers.`;
    $("curve").replaceChildren(...[el("div", { class: "charts" }, chart("AUC, held out", series, words), chart("Log-loss, held out", [{ points: loss }], worse)), key, el("p", { class: "sub" }, `Measured on ${last.source}.`)].filter(Boolean));
  };

  // Keys and controls.
  const act = { y: () => answer("yes"), n: () => answer("no"), s: () => answer("skip"), u: undo, l: learn };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target instanceof HTMLSelectElement) return;
    const does = act[event.key.toLowerCase()];
    if (does) { event.preventDefault(); does(); }
  });
  for (const [id, key] of [["yes", "y"], ["no", "n"], ["skip", "s"], ["undo", "u"], ["learn", "l"]]) $(id).addEventListener("click", () => act[key]());
  $("threshold").addEventListener("input", () => {
    $("threshold-value").textContent = fixed(threshold());
    if (bag) { drawBag(); }
  });
  $("auto").addEventListener("change", async () => {
    try { setState(await send("/api/settings", { auto: Number($("auto").value) })); } catch (error) { banner(error.message); }
  });
  window.addEventListener("resize", () => { if (bag && bag.xy) paint(); });
  window.addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });

  const start = async () => {
    try {
      setState(await api("/api/state"));
      await refill();
      await drawBags();
      say(`answers go to ${state.out}`);
    } catch (error) {
      banner(error instanceof Refused ? error.message : "The server does not answer.");
      say("");
    }
  };
  start();
})();
