"use strict";
// Shows /api/status, read anew every two seconds. Data becomes text nodes only, so markup in a name is shown as text.

const PERIOD_MS = 2000;
const MAP_PERIOD_MS = 10000;
const SPARK_LENGTH = 90;
const MAP_COLUMNS = 300;
const COLOURS = 6;
const ROW = 10;
const PLACES = 4;

const state = { answer: null, failedSince: null, maps: new Map(), decisions: new Map(), rates: new Map(), alerts: null };

// --- text ------------------------------------------------------------------------------------------------

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes < 10 && unit > 0 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

function rate(bytes) {
  return `${size(bytes)}/s`;
}

function duration(seconds) {
  const steps = [[86400 * 2, 86400, "days"], [7200, 3600, "h"], [120, 60, "min"], [0, 1, "s"]];
  const [, unit, name] = steps.find(([least]) => seconds >= least);
  return `${Math.round(seconds / unit)} ${name}`;
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function clock(epoch) {
  return new Date(epoch * 1000).toLocaleTimeString("en-GB");
}

function moment(epoch) {
  return new Date(epoch * 1000).toLocaleString("en-GB");
}

// --- elements ----------------------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "polyline", "text", "title"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "width%") element.style.width = `${value}%`;
    else if (name === "left%") element.style.left = `${value}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Brings `old` to what `fresh` is, and leaves alone what is equal: focus, scrolling and transitions stay.
function update(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) {
    if (name === "style") {
      for (const property of ["width", "left", "height"]) {
        if (old.style[property] !== fresh.style[property]) old.style[property] = fresh.style[property];
      }
    } else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const olds = [...old.childNodes];
  const freshes = [...fresh.childNodes];
  freshes.forEach((child, index) => (index < olds.length ? update(olds[index], child) : old.append(child)));
  olds.slice(freshes.length).forEach((child) => child.remove());
}

// --- words about a mount -------------------------------------------------------------------------------------

function alertsOf(mount) {
  return mount.status === null ? [] : mount.status.alerts || [];
}

function verdict(mount) {
  if (!mount.up) return ["bad", mount.status === null ? "not running" : "daemon away"];
  const urgent = alertsOf(mount).filter((alert) => alert.urgency === "now").length;
  if (urgent) return ["bad", count(urgent, "urgent alert")];
  if (alertsOf(mount).length) return ["warn", count(alertsOf(mount).length, "alert")];
  return ["good", "well"];
}

function headline(mount) {
  const status = mount.status;
  if (status === null) return `No daemon serves this mount: ${mount.error}.`;
  const parts = [];
  if (!mount.up) {
    const seen = state.answer.composed_at - mount.age_seconds;
    parts.push(`The daemon has not answered for ${duration(mount.age_seconds)}, since ${moment(seen)}; this is the last known state.`);
  }
  const segments = status.segments;
  if (!segments.count) parts.push("The log is empty: segments appear when the broker starts.");
  else {
    const growth = status.ingest_bytes_per_second >= 1
      ? `grows by ${rate(status.ingest_bytes_per_second)}`
      : "does not grow at the moment";
    parts.push(`The log has ${count(segments.count, "segment")} on ${count(status.disks.length, "disk")} and ${growth}.`);
  }
  if (status.degraded) parts.push(`${count(status.missing_disks.length, "disk")} of the pool missing: the mount is degraded.`);
  if (status.retention.removing) {
    parts.push(`Forced deletion is removing ${count(status.retention.removing, "segment")} to make room.`);
  } else if (status.retention.force_in_seconds !== null) {
    parts.push(`Forced deletion begins in ${duration(status.retention.force_in_seconds)} if the pressure holds.`);
  }
  const next = status.placement.next_disk;
  if (next !== null) parts.push(`The next segment goes to ${next}.`);
  else parts.push("No disk takes the next segment.");
  return parts.join(" ");
}

function outlook(disk, status) {
  if (!status.disks.length) return "";
  if (disk.state !== "rw" && disk.state !== "slow" && disk.last_error) return disk.last_error;
  if (disk.drain) {
    const left = count(disk.drain.segments_left, "segment");
    if (disk.drain.waits_for) return `draining: ${left} left, waits for ${disk.drain.waits_for.disk}: ${disk.drain.waits_for.reason}`;
    return disk.drain.eta_seconds === null ? `draining: ${left} left` : `draining: ${left} left, about ${duration(disk.drain.eta_seconds)}`;
  }
  if (disk.refusal === "above-force") return `skipped for new segments until below ${disk.thresholds.resume} %`;
  if (disk.refusal === "no-room") return "full: no new segments until space is free";
  if (disk.refusal === "cordoned") return "cordoned: its segments are served, new ones go to other disks";
  if (disk.refusal !== null) return `no new segments: ${disk.refusal}`;
  const words = disk.path === status.placement.next_disk ? ["takes the next segment"] : [];
  if (disk.next_threshold !== null) {
    const limit = `${disk.next_threshold} (${disk.thresholds[disk.next_threshold]} %)`;
    words.push(disk.eta_seconds === null ? `below ${limit}` : `reaches ${limit} in ${duration(disk.eta_seconds)}`);
  }
  return words.join(", ");
}

function level(disk) {
  if (disk.used_percent >= disk.thresholds.full) return "bad";
  return disk.used_percent >= disk.thresholds.force ? "warn" : "";
}

// --- parts of the page ---------------------------------------------------------------------------------------

function card(mount) {
  const [kind, word] = verdict(mount);
  const used = mount.status === null ? null : mount.status.statfs.used_percent;
  return [
    make("h2", {}, make("a", { href: `#/${encodeURIComponent(mount.name)}` }, mount.name)),
    make("p", {}, make("span", { class: `badge ${kind}` }, word)),
    make("p", { class: "path soft" }, mount.mountpoint || "mountpoint not known"),
    used === null ? null : bar(used, mount.status.thresholds, `${used} % used, as the broker sees it`),
    used === null ? null : make("p", {}, make("strong", {}, `${used} % used`), ", as the broker sees it"),
    make("p", { class: mount.up ? "" : "stale" }, headline(mount))];
}

function overview(answer) {
  const items = answer.mounts.map((mount) => make("li", { class: "card" }, ...shown(card, mount)));
  const parts = [make("h1", {}, "Mounts of this machine")];
  if (items.length) parts.push(make("ul", { class: "cards" }, ...items));
  else parts.push(make("p", { class: "lead" }, "There is no mount on this machine, and no configuration in /etc/commitlogfs. `commitlogfs mount NAME` starts one."));
  return parts;
}

function bar(percent, thresholds, label) {
  const kind = percent >= thresholds.full ? "bad" : percent >= thresholds.force ? "warn" : "";
  const marks = ["clean", "force", "full"].map((name) =>
    make("span", { class: "mark", "left%": thresholds[name], title: `${name} ${thresholds[name]} %` }));
  return make("div", { class: "bar", role: "img", "aria-label": label },
    make("span", { class: `used ${kind}`, "width%": Math.min(100, percent) }), ...marks);
}

function alertList(mount) {
  const alerts = alertsOf(mount);
  if (!alerts.length) return null;
  return make("section", { "aria-labelledby": "alerts" }, make("h2", { id: "alerts" }, "Alerts"),
    make("ul", { class: "alerts" }, ...alerts.map((alert) =>
      make("li", { class: `alert ${alert.urgency}` },
        make("strong", {}, `${alert.disk ? `${alert.disk}: ` : ""}${alert.text}`),
        make("span", {}, `${alert.urgency === "now" ? "Now" : "In working hours"}: ${alert.remedy}. `),
        make("span", { class: "soft" }, `Runbook ${alert.runbook}, code ${alert.code}.`)))));
}

function diskList(status) {
  const rows = status.disks.map((disk) => {
    const known = disk.used_percent !== null;
    const figures = [count(disk.segments, "segment")];
    if (known) figures.push(`${size(disk.available_bytes)} of ${size(disk.total_bytes)} free`);
    if (disk.io) figures.push(`read ${rate(disk.io.read_bytes_per_second)}`, `written ${rate(disk.io.written_bytes_per_second)}`, `busy ${Math.round(disk.io.busy_ratio * 100)} %`);
    for (const time of disk.operation_times) figures.push(`${(time.seconds * 1000).toFixed(1)} ms a ${time.operation}`);
    const kind = disk.state !== "rw" ? "bad" : disk.eligible ? "good" : "warn";
    const word = disk.state !== "rw" ? disk.state : disk.eligible ? "takes segments" : "skipped";
    return make("li", {},
      make("div", { class: "disk-head" }, make("h3", { class: "path" }, disk.path), make("span", { class: `badge ${kind}` }, word)),
      known ? bar(disk.used_percent, disk.thresholds, `${disk.path} is ${disk.used_percent} % used`) : null,
      make("p", {}, known ? make("strong", { class: level(disk) }, `${disk.used_percent.toFixed(1)} % used`) : "does not answer", outlook(disk, status) ? `, ${outlook(disk, status)}` : ""),
      make("p", { class: "figures" }, ...figures.map((text) => make("span", {}, text))));
  });
  const missing = status.missing_disks.map((path) =>
    make("li", {}, make("div", { class: "disk-head" }, make("h3", { class: "path" }, path), make("span", { class: "badge bad" }, "missing"))));
  return make("section", { "aria-labelledby": "disks" }, make("h2", { id: "disks" }, "Disks"),
    make("ul", { class: "disks" }, ...rows, ...missing),
    make("p", { class: "soft" }, `The marks are the thresholds: ${["clean", "force", "full"].map((name) => `${name} ${status.thresholds[name]} %`).join(", ")}.`));
}

function letter(index) {
  return String.fromCharCode(65 + (index % 26)) + (index < 26 ? "" : Math.floor(index / 26));
}

function places(columns, noun) {
  if (!columns.length) return `no ${noun}`;
  const first = columns.slice(0, PLACES).map((column) => column.start.toLocaleString("en")).join(", ");
  return `${noun} from offset ${first}${columns.length > PLACES ? ` and at ${columns.length - PLACES} more places` : ""}`;
}

// Each disk has a row of its own, so that no colour has to be known; gaps and damage have one below.
function segmentMap(name) {
  const drawn = state.maps.get(name);
  if (!drawn || !drawn.columns.length) return null;
  const order = new Map(drawn.disks.map((disk, index) => [disk.number, index]));
  const total = drawn.columns.length;
  const rows = drawn.disks.length + 1;
  const width = total > 120 ? 1 : 0.92;
  const rects = [];
  drawn.columns.forEach((column, x) => {
    const bottom = (rows - 1) * ROW;
    if (column.disk !== null) rects.push(make("rect", { x, y: order.get(column.disk) * ROW, width, height: ROW - 1, class: `d${order.get(column.disk) % COLOURS}` }));
    else if (column.segments) rects.push(make("rect", { x, y: 0, width, height: bottom - 1, class: "mixed" }));
    if (column.gap) rects.push(make("rect", { x, y: bottom, width, height: ROW - 1, class: "gap" }));
    if (column.damaged) rects.push(make("rect", { x, y: bottom, width, height: ROW - 1, class: "damaged" }));
  });
  const words = `From offset ${drawn.first_offset.toLocaleString("en")} to ${(drawn.last_offset + drawn.segment_size).toLocaleString("en")}, in segments of ${size(drawn.segment_size)}; `
    + `${places(drawn.columns.filter((column) => column.gap), "gap")}; ${places(drawn.columns.filter((column) => column.damaged), "damage")}.`;
  const legend = drawn.disks.map((disk, index) =>
    make("li", {}, make("span", { class: `swatch d${index % COLOURS}`, "aria-hidden": "true" }, letter(index)), disk.path));
  legend.push(make("li", {}, make("span", { class: "swatch mixed", "aria-hidden": "true" }, "+"), "several disks"));
  legend.push(make("li", {}, make("span", { class: "swatch gap", "aria-hidden": "true" }, ""), "gap"));
  legend.push(make("li", {}, make("span", { class: "swatch damaged", "aria-hidden": "true" }, "!"), "damaged"));
  const labels = [...drawn.disks.keys()].map((index) => make("span", {}, letter(index)));
  const svg = make("svg", { viewBox: `0 0 ${total} ${rows * ROW}`, preserveAspectRatio: "none", role: "img", "aria-label": words }, ...rects);
  svg.style.height = `${rows * 1.1}rem`;
  return make("section", { "aria-labelledby": "map", class: "map" }, make("h2", { id: "map" }, "Segments by offset"),
    make("div", { class: "rows" }, make("div", { class: "letters", "aria-hidden": "true" }, ...labels, make("span", {}, "!")), svg),
    make("p", { class: "soft" }, words), make("ul", { class: "legend" }, ...legend));
}

function rates(mount) {
  const status = mount.status;
  const points = state.rates.get(mount.name) || [];
  const top = Math.max(1, ...points);
  const line = points.map((value, index) => `${(index * 100) / (SPARK_LENGTH - 1)},${30 - (value / top) * 28}`).join(" ");
  const bits = [["Written to the log", rate(status.ingest_bytes_per_second)],
    ["The broker sees", `${status.statfs.used_percent} % used`],
    ["Store root", status.store_root.used_percent === null ? "does not answer" : `${Math.round(status.store_root.used_percent)} % used`],
    ["Files open through the mount", `${status.daemon.passthrough_files + status.daemon.plain_files}, passthrough ${status.daemon.passthrough}`],
    ["Daemon", `${status.daemon.version}, since ${moment(status.daemon.since)}`],
    ["Restarts without unmount", `${status.daemon.restarts}`]];
  if (status.oldest_message) bits.splice(1, 0, ["Oldest message", `${duration(Math.max(0, status.composed_at - status.oldest_message))} old`]);
  return make("section", { "aria-labelledby": "rates" }, make("h2", { id: "rates" }, "Rates and service"),
    points.every((value) => value < 1) ? null : make("svg", { class: "spark", viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": `Growth of the log in the last minutes, at most ${rate(top > 1 ? top : 0)}` }, make("polyline", { points: line })),
    make("dl", { class: "bits" }, ...bits.map(([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, text)))));
}

function job(title, done, whole, text) {
  return make("li", {}, make("h3", {}, title),
    whole > 0 ? make("progress", { value: done, max: whole, "aria-label": title }) : null, make("p", { class: "soft" }, text));
}

function jobs(status) {
  const found = [];
  const scrub = status.scrub;
  if (scrub.state === "running" || scrub.state === "paused") {
    const eta = scrub.eta_seconds === null ? "" : `, about ${duration(scrub.eta_seconds)} to go`;
    found.push(job(`Scrub ${scrub.state}`, scrub.done_bytes, scrub.done_bytes + scrub.left_bytes, `${size(scrub.done_bytes)} read at ${rate(scrub.bytes_per_second)}${eta}`));
  }
  const move = status.moves.current;
  if (move) found.push(job(`${move.from === null ? "Restoring" : "Moving"} ${move.segment}`, move.done_bytes, move.size, `${move.phase}, to ${move.to}`));
  for (const disk of status.disks) {
    if (disk.drain) found.push(job(`Draining ${disk.path}`, 0, 0, outlook(disk, status)));
  }
  if (status.rebalance) {
    const eta = status.rebalance.eta_seconds === null ? "" : `, about ${duration(status.rebalance.eta_seconds)} to go`;
    found.push(job(`Rebalance by ${status.rebalance.mode}`, 0, 0, `${count(status.rebalance.segments_left, "segment")} left, spread ${status.rebalance.spread_points} %${eta}`));
  }
  const checksums = status.checksums;
  if (checksums.without + checksums.unread > 0) {
    found.push(job("Checksums", checksums.with, checksums.with + checksums.without + checksums.unread, `${count(checksums.with, "sealed segment")} with a checksum`));
  }
  if (!found.length) return make("section", { "aria-labelledby": "jobs" }, make("h2", { id: "jobs" }, "Jobs"), make("p", { class: "soft" }, "No scrub, move or rebalance is under way."));
  return make("section", { "aria-labelledby": "jobs" }, make("h2", { id: "jobs" }, "Jobs"), make("ul", { class: "disks" }, ...found));
}

function events(name) {
  const found = state.decisions.get(name);
  if (!found || !found.length) return null;
  return make("section", { "aria-labelledby": "events" }, make("h2", { id: "events" }, "Recent events"),
    make("ul", { class: "events" }, ...found.map((event) =>
      make("li", {}, make("time", { datetime: new Date(event.at * 1000).toISOString(), title: moment(event.at) }, clock(event.at)), make("span", {}, event.text)))));
}

function detail(mount) {
  const [kind, word] = verdict(mount);
  const parts = [make("h1", {}, mount.name, " ", make("span", { class: `badge ${kind}` }, word)),
    make("p", { class: "path soft" }, mount.mountpoint || "mountpoint not known"),
    make("p", { class: "lead" }, headline(mount))];
  if (mount.status !== null) {
    parts.push(make("div", { class: mount.up ? "" : "stale" }, alertList(mount),
      make("div", { class: "columns" }, diskList(mount.status), make("div", {}, rates(mount), jobs(mount.status))),
      segmentMap(mount.name), events(mount.name)));
  }
  return parts;
}

// --- life ----------------------------------------------------------------------------------------------------

function chosen() {
  if (!location.hash.startsWith("#/")) return null;
  try {
    return decodeURIComponent(location.hash.slice(2));
  } catch (error) {
    return location.hash.slice(2);
  }
}

// A document of another version may lack what is shown here; the other mounts are shown all the same.
function shown(show, mount) {
  try {
    return show(mount);
  } catch (error) {
    return [make("h2", {}, mount.name), make("p", { class: "bad" }, `This mount cannot be shown (${error.message}). Reload the page after an upgrade; the status has it as JSON.`)];
  }
}

function freshness() {
  const place = document.getElementById("freshness");
  let text = "";
  if (state.failedSince !== null) text = `The exporter has not answered for ${duration((Date.now() - state.failedSince) / 1000)}`;
  else if (state.answer !== null) {
    const wanted = chosen();
    const ages = state.answer.mounts.filter((mount) => mount.up && (wanted === null || mount.name === wanted)).map((mount) => mount.age_seconds);
    text = `Read at ${clock(state.answer.composed_at)}`;
    if (ages.length) text += `, figures ${Math.round(Math.max(...ages))} s old`;
  }
  if (place.textContent !== text) place.textContent = text;
  place.className = state.failedSince === null ? "freshness" : "freshness bad";
}

function announce(answer) {
  const present = new Set(answer.mounts.flatMap((mount) => [
    ...(mount.up ? [] : [`${mount.name}: the daemon does not answer`]),
    ...alertsOf(mount).map((alert) => `${mount.name}: ${alert.text}`)]));
  if (state.alerts !== null) {
    const begun = [...present].filter((text) => !state.alerts.has(text));
    const ended = [...state.alerts].filter((text) => !present.has(text)).map((text) => `over: ${text}`);
    if (begun.length + ended.length) document.getElementById("news").textContent = [...begun, ...ended].join("; ");
  }
  state.alerts = present;
}

function render() {
  freshness();
  if (state.answer === null) return;
  const wanted = chosen();
  const mount = state.answer.mounts.find((one) => one.name === wanted);
  const fresh = make("main", { id: "main", tabindex: "-1" },
    ...(mount ? shown(detail, mount) : overview(state.answer)));
  if (wanted !== null && !mount) fresh.prepend(make("p", { class: "bad" }, `There is no mount ${wanted} any more.`));
  update(document.getElementById("main"), fresh);
  const links = state.answer.mounts.map((one) =>
    make("a", { href: `#/${encodeURIComponent(one.name)}`, "aria-current": one.name === wanted ? "page" : null }, one.name));
  update(document.getElementById("mounts"), make("nav", { id: "mounts", "aria-label": "Mounts" }, ...links));
  document.getElementById("version").textContent = state.answer.version;
  document.title = mount ? `${mount.name} – commitlogfs` : "commitlogfs";
}

async function fetchJson(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

async function readStatus() {
  try {
    const answer = await fetchJson("api/status");
    announce(answer);
    for (const mount of answer.mounts) {
      if (!mount.up) continue;
      const points = state.rates.get(mount.name) || [];
      points.push(mount.status.ingest_bytes_per_second);
      state.rates.set(mount.name, points.slice(-SPARK_LENGTH));
    }
    state.answer = answer;
    state.failedSince = null;
  } catch (error) {
    state.failedSince ??= Date.now();
  }
  render();
}

async function readDetails() {
  const name = chosen();
  if (name === null) return;
  const base = `api/mounts/${encodeURIComponent(name)}`;
  const read = async (kind, into, pick) => {
    try {
      into.set(name, pick(await fetchJson(`${base}/${kind}`)));
    } catch (error) {
      // What was shown before stays.
    }
  };
  await Promise.all([
    read(`map?columns=${MAP_COLUMNS}`, state.maps, (answer) => answer),
    read("decisions?limit=30", state.decisions, (answer) => answer.decisions)]);
  render();
}

async function poll(work, period) {
  for (;;) {
    try {
      await work();
    } catch (error) {
      console.error(error);
    }
    await new Promise((done) => setTimeout(done, period));
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // its target is no mount
  document.getElementById("main").focus();
});
addEventListener("hashchange", () => {
  render();
  document.getElementById("main").focus();
  scrollTo(0, 0);
  readDetails();
});
setInterval(freshness, 1000);
poll(readStatus, PERIOD_MS);
poll(readDetails, MAP_PERIOD_MS);
