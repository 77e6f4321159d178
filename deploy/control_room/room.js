// The control room. Everything on the page comes from one request a second; an override is one POST. Texts from the
// service go into the page as text nodes, never as HTML. The key lives in the variable below and nowhere else.
const base = location.pathname.replace(/\/*$/, "/");
const KEPT_S = 900, SLO_WINDOW_S = 300, PERIOD_MS = 1000, SILENT_MS = 8000, SHOWN_DECISIONS = 100;
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
const samples = [];    // oldest first
const decisions = [];  // oldest first
let status = null, key = "", span_s = 300, hover_s = null, ahead_s = 0, seen_s = 0, ordered = null, ordered_ms = 0;

// -- words ---------------------------------------------------------------------------------------------------------

const words = (reason) => reason.replaceAll("_", " ").replace(/\b(fp8|fp16|ttft|tpot|slo|kv)\b/g, (word) => word.toUpperCase());
const sentence = (reason) => words(reason.slice(0, 1).toUpperCase() + reason.slice(1)).replace(/^(Fp8|Fp16|Ttft|Tpot|Slo)\b/, (word) => word.toUpperCase());
const name = (mode) => (mode === "auto" ? "auto" : mode.toUpperCase());
const number = (value, digits = value < 10 ? 1 : 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
const milliseconds = (value) => (value === null ? "–" : value < 10000 ? `${number(value)} ms` : `${(value / 1000).toFixed(1)} s`);
const percent = (part, whole) => (whole > 0 ? `${(Math.floor((1000 * part) / whole) / 10).toFixed(1)} %` : "–");
const clock = (wall_s) => new Date(wall_s * 1000).toTimeString().slice(0, 8);
const wall = () => Date.now() / 1000 + ahead_s;

function lasting(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function put(id, text, bad = false) {
  const element = at(id);
  if (element.textContent !== text) element.textContent = text;
  element.classList.toggle("bad", bad);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const element = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

// -- what is in force ----------------------------------------------------------------------------------------------

function drawNow(error) {
  if (status === null) {
    put("reason", "The controller does not answer", true);
    put("detail", error ?? "");
    return;
  }
  const mode = at("mode");
  mode.dataset.mode = status.mode;
  put("mode", name(status.mode));
  put("reason", status.override ? "An operator's override" : sentence(status.reason));
  const details = [`for ${lasting(status.since_s)}`, `policy ${words(status.policy)}`, `epoch ${status.epoch}`];
  if (status.override) details[0] = status.override.remaining_s === null ? "until it is changed" : `for ${lasting(status.override.remaining_s)} more`;
  else if (status.last_reason !== status.reason) details.push(`now: ${words(status.last_reason)}`);
  put("detail", details.join(" · "));

  const end_s = wall(), last = samples.at(-1);
  const recent = samples.filter((each) => each.wall_s >= end_s - SLO_WINDOW_S);
  const sum = (field) => recent.reduce((total, each) => total + each[field], 0);
  const waiting = status.replicas.reduce((total, each) => total + each.waiting, 0);
  const running = status.replicas.reduce((total, each) => total + each.running, 0);
  put("tile-load", last?.arrivals_per_s == null ? "–" : `${number(last.arrivals_per_s)}/s`);
  put("tile-queue", `${waiting} waiting, ${running} running`);
  for (const which of ["ttft", "tpot"]) {
    const value = last?.[`${which}_p90_ms`] ?? null, objective = status[`slo_${which}_ms`];
    put(`tile-${which}`, milliseconds(value), value !== null && objective !== null && value > objective);
    put(`tile-${which}-slo`, objective === null ? "" : `objective ${number(objective)} ms`);
  }
  const evaluated = sum("slo_evaluated"), met = sum("within_slo");
  put("tile-slo", percent(met, evaluated), evaluated > 0 && met < 0.95 * evaluated);
  put("tile-slo-of", `of ${number(evaluated, 0)} requests in 5 min`);
  const exact = sum("answers_exact"), answers = exact + ["weights_exact", "fast", "mixed"].reduce((total, each) => total + sum(`answers_${each}`), 0);
  put("tile-exact", percent(exact, answers));
  put("tile-exact-of", `of ${number(answers, 0)} in 5 min`);
  const fp16 = sum("tokens_fp16"), tokens = fp16 + sum("tokens_fp8");
  put("tile-tokens", percent(fp16, tokens));
  put("tile-tokens-of", `of ${number(tokens, 0)} in 5 min`);

  const notices = [];
  if (status.fp8_insufficient) notices.push("FP8 alone does not hold the SLO.");
  if (status.admission_scale < 1) notices.push(`Load is shed: admission limits at ${Math.round(100 * status.admission_scale)} %.`);
  if (status.desired_replicas !== null) notices.push(`${status.desired_replicas} replicas asked for.`);
  if (status.path_saturated) notices.push("The path in front of the engine is the limit: another precision would not help.");
  if (status.config_error) notices.push(`The configuration was not reloaded: ${status.config_error}`);
  if (status.step_errors) notices.push(`${status.step_errors} steps of the controller failed; its log says why.`);
  if (at("notices").textContent !== notices.join("")) at("notices").replaceChildren(...notices.map((text) => element("li", {}, text)));
}

// -- replicas ------------------------------------------------------------------------------------------------------

function stateOf(replica) {
  if (replica.fault) return [words(replica.fault), true];
  if (replica.stale) return [`silent for ${lasting(replica.age_s)}`, true];
  if (!replica.ready) return ["warming up", false];
  if (!replica.acked) return ["has not acknowledged yet", true];
  return [replica.fp16_only ? "sound, FP16 only" : "sound", false];
}

function drawReplicas() {
  const names = [...at("fleet").querySelectorAll("th")].map((each) => each.textContent);
  const rows = status.replicas.map((each) => {
    const [state, bad] = stateOf(each);
    const cells = [
      [element("b", { title: each.id }, each.id.length > 14 ? `…${each.id.slice(-12)}` : each.id)],
      [element("b", { class: `${each.mode}-text` }, name(each.mode)), element("span", { class: "quiet" }, ` directive ${name(each.directive)}`)],
      [`${each.waiting} / ${each.running}`], [percent(each.within_slo, each.slo_evaluated)], [milliseconds(each.ttft_p90_ms)], [milliseconds(each.tpot_p90_ms)],
      [`${Math.round(100 * each.kv_usage)} %`], [element("span", bad ? { class: "bad" } : {}, state)],
    ];
    return element("tr", {}, ...cells.map((cell, index) => element("td", { "data-name": names[index] }, ...cell)));
  });
  if (!rows.length) rows.push(element("tr", {}, element("td", { colspan: "8", class: "none" }, "No replica has reported yet.")));
  at("replicas").replaceChildren(...rows);
}

// -- decisions -----------------------------------------------------------------------------------------------------

function decisionItem(each) {
  const what = element("span", { class: "what" });
  if (each.outcome === "applied" && each.from_mode !== each.to_mode) {
    what.append(`${name(each.from_mode)} → `, element("span", { class: `${each.to_mode}-text` }, name(each.to_mode)));
  } else {
    what.append(each.outcome === "applied" ? `${name(each.to_mode)}, adjusted` : each.outcome);
  }
  const summary = element("summary", {}, element("time", {}, clock(each.wall_s)), what, element("span", { class: "reason" }, sentence(each.reason)));
  const facts = [["decision", each.decision_id], ["epoch", each.epoch], ["policy", words(each.policy)], ...Object.entries(each.inputs).map(([key, value]) => [words(key), number(value, 3)])];
  const list = element("dl", {}, ...facts.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, String(value))]));
  const quiet = each.outcome === "applied" ? {} : { class: "held" };
  return element("li", quiet, element("details", {}, summary, list));
}

function addDecisions(more) {
  const list = at("decisions");
  if (more.length && list.querySelector(".none")) list.replaceChildren();
  for (const each of more) {
    // The control routes that have started anew tell of all that the controller has in memory.
    if (decisions.some((one) => one.decision_id === each.decision_id && one.wall_s === each.wall_s)) continue;
    decisions.push(each);
    list.prepend(decisionItem(each));
  }
  decisions.splice(0, decisions.length - 4 * SHOWN_DECISIONS);
  while (list.childElementCount > SHOWN_DECISIONS) list.lastElementChild.remove();
  if (!list.childElementCount) list.append(element("li", { class: "none" }, "None yet."));
}

// -- the data ------------------------------------------------------------------------------------------------------

function take(content) {
  ahead_s = content.wall_s - Date.now() / 1000;  // times are the service's, whatever this machine's clock says
  seen_s = content.at_s;
  samples.push(...content.samples);
  while (samples.length && samples[0].wall_s < content.wall_s - KEPT_S) samples.shift();
  addDecisions(content.decisions);
  // One from just before the operator's order says nothing of it.
  const older = content.status !== null && status !== null && content.status.epoch < status.epoch;
  if (!older || Date.now() > ordered_ms + 3000) status = content.status;
  at("room").hidden = false;
  at("gate").hidden = true;
  show(content.error);
}

function count() {  // the answer to an override does not wait for a slow replica: the data say when it has acknowledged
  const reached = status.replicas.filter((each) => each.acked).length;
  put("said", `${name(ordered)}: ${reached} of ${status.replicas.length} replicas have acknowledged.`);
  if (reached === status.replicas.length) ordered = null;
}

function show(error = null) {
  drawNow(error);
  if (status !== null) {
    if (ordered !== null) count();
    drawReplicas();
  }
  drawCharts();
}

function say(state, text) {
  at("link").dataset.state = state;
  put("link", text);
  at("room").classList.toggle("old", state === "lost");
}

async function poll() {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(`${base}data?since=${seen_s}`, { headers, signal: AbortSignal.timeout(SILENT_MS), cache: "no-store" });
  if (response.status === 401 || response.status === 403) {
    const { error } = await response.json();
    return denied(key ? error.message : "");
  }
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  take(await response.json());
  say("live", "live");
  return true;
}

function denied(message) {
  key = "";
  at("room").hidden = true;
  at("gate").hidden = false;
  put("gate-said", message, true);
  say("wait", "a key is needed");
  return false;
}

async function stayCurrent() {
  for (let again = true; again;) {
    try {
      again = await poll();
    } catch (error) {
      say("lost", samples.length ? `connection lost, last seen ${clock(samples.at(-1).wall_s)}; trying again` : "no answer; trying again");
    }
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

// -- the operator --------------------------------------------------------------------------------------------------

at("gate").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("gate-key").value.trim();
  at("gate-key").value = "";
  stayCurrent();
});

at("override").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = at("key").value.trim() || key;
  if (!given) return put("said", "An override needs the admin key.", true);
  const mode = at("override").elements.mode.value, ttl = at("ttl").value;
  const order = { mode };
  if (ttl && mode !== "auto") order.ttl_s = Number(ttl);
  ordered = null;
  put("said", "Sending");
  try {
    const response = await fetch(`${base}admin/directive`, {
      method: "POST", headers: { Authorization: `Bearer ${given}`, "Content-Type": "application/json" }, body: JSON.stringify(order),
    });
    const answer = await response.json();
    if (!response.ok) return put("said", answer.error.message, true);
    key = given;
    at("key").value = "";
    at("key").placeholder = "Key kept until you close the page";
    status = answer;
    ordered = mode;
    ordered_ms = Date.now();
    show();
  } catch (error) {
    put("said", "The service did not answer; try again.", true);
  }
});

function choose(seconds) {
  span_s = seconds;
  for (const each of at("spans").children) each.setAttribute("aria-pressed", String(Number(each.dataset.span) === seconds));
}

at("spans").addEventListener("click", (event) => {
  if (!event.target.dataset.span) return;
  choose(Number(event.target.dataset.span));
  drawCharts();
});
addEventListener("resize", () => { if (samples.length) drawCharts(); });
choose(span_s);
stayCurrent();
