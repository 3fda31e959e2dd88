// Numbers, times and sizes as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(n: number | null | undefined): string {
  return n === null || n === undefined ? "–" : whole.format(n);
}

/** 12,345 as 12.3k: for places without room. */
export function short(n: number): string {
  // What would round up to the next unit is written in it.
  if (n < 999.5) return String(Math.round(n));
  const [value, unit] = n < 999.5e3 ? [n / 1e3, "k"] : n < 999.5e6 ? [n / 1e6, "M"] : [n / 1e9, "G"];
  return `${value < 9.95 ? value.toFixed(1) : value.toFixed(0)}${unit}`;
}

export function ms(n: number | null | undefined): string {
  if (n === null || n === undefined) return "–";
  if (n < 1) return "<1 ms";
  if (n < 999.5) return `${Math.round(n)} ms`;
  if (n < 59_950) return `${(n / 1000).toFixed(n < 9995 ? 2 : 1)} s`;
  return span(n / 1000);
}

export function span(seconds: number): string {
  if (seconds < 59.5) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  // Rounded once, so that no rest is a whole unit.
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 > 0 ? ` ${whole % 60} s` : ""}`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h${minutes % 60 > 0 ? ` ${minutes % 60} min` : ""}`;
  return `${(seconds / 86_400).toFixed(1)} days`;
}

/** A time that was saved or, if it is negative, lost. */
export function gained(seconds: number): string {
  const size = Math.abs(seconds);
  const text = size < 1 ? ms(size * 1000) : span(size);
  return seconds < 0 ? `${text} lost` : `${text} saved`;
}

/** As `poncho top` writes them. */
export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let value = n;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export function clock(at: number): string {
  return new Date(at).toLocaleTimeString("en-GB");
}

export function ago(seconds: number): string {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86_400) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86_400)} d ago`;
}

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

/** tool_order as Tool order. */
export function words(name: string): string {
  const text = name.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** ram_file as RAM file. */
export function tierName(tier: string): string {
  return tier === "disk" ? "Disk" : tier === "shared" ? "Shared" : tier.replace("ram", "RAM").replace("_", " ");
}

const SOURCES: Record<string, string> = {
  sequence: "live context",
  ram: "RAM",
  ram_file: "RAM file",
  disk: "disk",
  peer: "other node",
  shared: "shared store",
};

export function sourceName(source: string | null | undefined): string {
  return source ? (SOURCES[source] ?? source) : "cache";
}
